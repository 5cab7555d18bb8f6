//! A watcher of a sale.

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt as _;
use serde_json::Value;
use testkit::wait::within;
use tokio::time::timeout;
use tower::ServiceExt as _;

/// A stream of `GET /events`, and the state that it has shown.
pub(super) struct Watcher {
    body: Body,
    /// The last message as it came, with the lists as they are after all messages.
    pub(super) view: Value,
    pub(super) version: u64,
}

/// One message.
pub(super) struct Message {
    pub(super) event: String,
    pub(super) data: Value,
}

impl Watcher {
    /// Opens the stream, and reads nothing of it yet.
    pub(super) async fn open(router: &Router, path: &str) -> Self {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Self { body: answer.into_body(), view: Value::Null, version: 0 }
    }

    /// The next message; `None` at the end of the stream.
    pub(super) async fn try_next(&mut self) -> Option<Message> {
        loop {
            let frame = within("the stream goes on or ends", self.body.frame()).await?.unwrap();
            let text = String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap();
            let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
            let (Some(event), Some(data)) = (line("event: "), line("data: ")) else { continue };
            let data: Value = serde_json::from_str(data).unwrap();
            assert!(line("id: ").unwrap().ends_with(&format!("-{}", data["version"])), "{text}");
            let message = Message { event: event.to_owned(), data };
            self.take(&message);
            return Some(message);
        }
    }

    pub(super) async fn next(&mut self) -> Message {
        self.try_next().await.expect("the stream goes on")
    }

    /// Reads on until `condition` holds.
    pub(super) async fn until(&mut self, what: &str, condition: impl Fn(&Value) -> bool) {
        let reading = async {
            while !condition(&self.view) {
                self.next().await;
            }
        };
        // the view is shown as it was at the end
        let in_time = timeout(testkit::wait::DEADLINE, reading).await.is_ok();
        assert!(in_time, "not in time: {what}, but {}", self.view);
    }

    /// Merges a message as the page does.
    fn take(&mut self, message: &Message) {
        let version = message.data["version"].as_u64().unwrap();
        let mut view = message.data.clone();
        if message.event == "change" {
            assert_eq!(version, self.version + 1, "a change builds on the message before it");
            for (list, key) in [("tenures", "token"), ("orders", "position"), ("notes", "id")] {
                let mut all = self.view[list].as_array().unwrap().clone();
                for new in message.data[list].as_array().unwrap() {
                    all.retain(|known| known[key] != new[key]);
                    all.push(new.clone());
                }
                view[list] = all.into();
            }
        } else {
            assert_eq!(message.event, "snapshot");
            assert!(version > self.version, "a message is newer than the one before");
        }
        self.version = version;
        self.view = view;
    }
}
