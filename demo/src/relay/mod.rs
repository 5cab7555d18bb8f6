//! The panels that the laboratory adds to the page: its own files, which the service does not have.

use axum::Router;
use axum::http::header;
use axum::routing::get;

/// The module that the page loads, as the events name it.
pub(super) const MODULE: &str = "demo/static/panels.js";

const FILES: [(&str, &str, &str); 4] = [
    ("/demo/static/panels.js", "text/javascript", include_str!("../../page/panels.js")),
    ("/demo/static/beside.js", "text/javascript", include_str!("../../page/beside.js")),
    ("/demo/static/scoreboard.js", "text/javascript", include_str!("../../page/scoreboard.js")),
    ("/demo/static/panels.css", "text/css", include_str!("../../page/panels.css")),
];

pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.into_iter().fold(Router::new(), |routes, (path, kind, text)| {
        let headers = [
            (header::CONTENT_TYPE, format!("{kind}; charset=utf-8")),
            // the page is never older than the program
            (header::CACHE_CONTROL, "no-cache".to_owned()),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        ];
        routes.route(path, get(async move || (headers, text)))
    })
}

#[cfg(test)]
mod tests {
    use crate::baselines::LockMode;

    /// Goal: the page has its words for every lock that the instances can share, in the order of the command line.
    #[test]
    fn the_page_knows_every_lock() {
        let guards = include_str!("../../../static/page/guards.js");
        let (_, locks) = guards.split_once("export const LOCKS = {\n").expect("they are there");
        let (locks, _) = locks.split_once("\n};").expect("they end");
        let entries = locks.lines().filter_map(|line| line.strip_prefix("  ")?.split_once(": "));
        let names = entries.map(|(name, _)| name.trim_matches('"'));
        let names: Vec<_> = names.filter(|name| !name.starts_with(' ')).collect();
        assert_eq!(names, LockMode::SHARED.map(LockMode::name));
    }
}
