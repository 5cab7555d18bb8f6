//! What was written is read again, and what is no whole run is refused for its own reason.

use std::fmt::Write as _;

use super::*;
use crate::checker::{Acknowledgement, Effect, Failure, Order, judge, order_id};
use crate::cli::Limits;

fn state(stock: i64, lucky: i64, orders: u64) -> StockState {
    StockState { stock, lucky, initial: 2, orders, sale: Some(1) }
}

fn setup() -> Setup {
    let item = |name: Option<&str>, run: &str| {
        let name = name.map(str::to_owned);
        Item { name, run: run.to_owned(), before: state(2, 0, 0) }
    };
    Setup {
        version: VERSION,
        run: "run".to_owned(),
        started: "2026-11-20T12:00:00.000Z".to_owned(),
        requests: 7,
        seconds: None,
        connections: 3,
        rate: Some(1.5),
        abandon: 0.25,
        seed: 7,
        quantity: 1,
        alone: true,
        tokens: true,
        instances: vec!["http://a".to_owned(), "http://b".to_owned()],
        items: vec![item(None, "run-1"), item(Some("shoe"), "run-2")],
    }
}

fn failure(
    status: Option<u16>,
    why: &'static str,
    effect: fn(Failure) -> Effect,
    is_final: bool,
) -> Outcome {
    Outcome { status, effect: effect(Failure { why: why.into(), is_final }) }
}

/// Attempts of every kind: item, number, place, outcome.
fn attempts() -> Vec<(usize, usize, usize, Outcome)> {
    let accepted = Effect::Ok(Acknowledgement {
        remaining: 1,
        instance: "8080".to_owned(),
        token: Some(-3),
        position: Some(1),
    });
    let accepted = Outcome { status: Some(200), effect: accepted };
    vec![
        (0, 0, 0, failure(None, "broken connection", Effect::Unknown, false)),
        (0, 1, 1, Outcome::went_away()),
        (0, 0, 1, accepted),
        (0, 2, 1, failure(Some(503), "lock-unavailable", Effect::Failed, false)),
        (0, 2, 0, failure(Some(409), "sold-out", Effect::Failed, true)),
        (1, 0, 0, failure(Some(400), "bad-item", Effect::Failed, true)),
        (1, 1, 0, failure(Some(500), "", Effect::Unknown, true)),
    ]
}

/// Writes a run, and returns it with the file's text.
fn written(end: bool) -> (Vec<History>, String) {
    let setup = setup();
    let mut histories = setup.histories();
    for history in &mut histories {
        history.orders = vec![Order::unsent(); 3];
    }
    histories[0].ledger.push(LedgerEntry {
        position: 1,
        order: order_id("run-1", 0),
        quantity: 1,
        remaining: 1,
        instance: Some("8080".to_owned()),
        token: Some(-3),
    });
    histories[0].after.push(("http://b".to_owned(), state(1, 1, 1)));
    histories[1].gone.push("http://a".to_owned());

    let directory = tempfile::tempdir().expect("a directory for the file");
    let path = directory.path().join("history.jsonl");
    let file = std::fs::File::create(&path).expect("the directory is writable");
    let (writer, recorder) = Writer::start(file, &setup).expect("the file is writable");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    for (time, (item, number, place, outcome)) in (1000..).step_by(1000).zip(attempts()) {
        histories[item].orders[number].add(time, time + 999, outcome.clone());
        let order = order_id(&setup.items[item].run, number);
        let (quantity, to, sent, ended) = (1, place, time, time + 999);
        let attempt = Attempt { order, item, quantity, to, sent, ended, outcome };
        runtime.block_on(recorder.send(attempt)).expect("the thread lives");
    }
    drop(recorder);
    writer.finish(end.then_some(&histories[..])).expect("the file is writable");
    let text = std::fs::read_to_string(path).expect("it was written");
    (histories, text)
}

/// Goal: a run that is read again is the run that was written, and is judged alike.
#[test]
fn round_trip() {
    let (histories, text) = written(true);
    let recorded = read(text.as_bytes()).expect("it is whole");
    assert_eq!(recorded.setup, setup());
    assert_eq!(recorded.histories.len(), 2);
    for (written, read) in histories.iter().zip(&recorded.histories) {
        assert_eq!(format!("{written:?}"), format!("{read:?}"));
        assert_eq!(judge(written, Limits::default()), judge(read, Limits::default()));
    }
    let unsettled: Vec<_> = recorded.unsettled.iter().map(|(why, n)| (why.as_str(), *n)).collect();
    let expected = [("503 lock-unavailable", 1), ("broken connection", 1), ("client went away", 1)];
    assert_eq!(unsettled, expected);
}

/// Goal: each field of each line is described.
#[test]
fn every_field_is_described() {
    let described = include_str!("mod.rs").split("\nmod reader;").next().expect("it begins so");
    for line in written(true).1.lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("one object a line");
        for (kind, fields) in line.as_object().expect("an object") {
            assert!(described.contains(&format!("`{kind}`")), "{kind}");
            for (name, _) in fields.as_object().expect("an object") {
                assert!(described.contains(&format!("`{name}`")), "{kind}: {name}");
            }
        }
    }
}

fn refused(text: &str) -> String {
    crate::in_full(&read(text.as_bytes()).expect_err("it is no whole run"))
}

/// Goal: the file of a run that was killed, wherever it was cut, says what is missing.
#[test]
fn cut_off() {
    let killed = written(false).1;
    assert_eq!(
        refused(&killed),
        "it is cut off: 7 attempts were recorded, until 0.007 s, but the ledger, the state and the \
         end of the run are missing; the run was killed, or could not read the end of the sale, so \
         there is nothing to judge"
    );
    let whole = written(true).1;
    for cut in 0..whole.len() - 1 {
        let said = refused(&whole[..cut]);
        assert!(said.contains("is cut off") || said.contains("is empty"), "{cut}: {said}");
    }
    let ledger = whole.find("{\"state\"").expect("states come after the ledger");
    assert!(refused(&whole[..ledger]).contains("but the end of the run is missing"));
}

/// Goal: a line that is none, or does not belong, is named by its number; a line that is missing is
/// missed.
#[test]
fn lines_that_do_not_belong() {
    let (_, text) = written(true);
    let lines: Vec<_> = text.lines().collect();
    let with = |at: usize, line: &str| {
        let mut text = String::new();
        for (number, there) in lines.iter().enumerate() {
            writeln!(text, "{}", if number == at { line } else { there }).expect("a string grows");
        }
        refused(&text)
    };
    assert!(with(3, "{\"attempt\":").starts_with("line 4 is not a line of a recorded run"));
    assert!(with(2, "").starts_with("line 3 is not a line"), "{}", with(2, ""));
    assert_eq!(with(2, lines[0]), "line 3: a second `run`");
    assert_eq!(with(0, lines[1]), "line 1: the first line must be `run`");
    let future = lines[0].replace("\"version\":1", "\"version\":2");
    assert_eq!(with(0, &future), "line 1: version 2 is not known, only 1");
    let endless = lines[0].replace("\"rate\":1.5", "\"rate\":0.0");
    assert_eq!(with(0, &endless), "line 1: a rate is from 0.001 to 1000000");
    let strange = lines[1].replace("run-1-0", "run-3-0");
    assert_eq!(with(1, &strange), "line 2: run-3-0 is no order of this run");
    let nowhere = lines[1].replace("\"to\":0", "\"to\":2");
    assert_eq!(with(1, &nowhere), "line 2: no instance 2");
    let backwards = lines[1].replace("\"ended\":1999", "\"ended\":1");
    assert_eq!(with(1, &backwards), "line 2: an attempt cannot end before it was sent");
    let early = lines[3].replace("\"sent\":3000", "\"sent\":1500");
    let early = with(3, &early);
    assert!(early.starts_with("line 4: run-1-0 was sent again before"), "{early}");
    let (first, rest) = text.split_once('\n').expect("several lines");
    let (_, rest) = rest.split_once('\n').expect("several lines");
    let missing = refused(&format!("{first}\n{rest}"));
    assert_eq!(missing, "6 attempts are in it, and 7 were written: lines are missing");
}
