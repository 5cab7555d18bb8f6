//! A written run can be read again, and each incomplete run is refused for its own reason.

use std::io::Seek as _;

use serde_json::Value;

use super::*;
use crate::checker::{Event, FinalOutcome};

/// A run with attempts of every kind.
const RECORDED: &str = r#"
{"run":{"format":4,"version":"0.1.0","run":"run","started":"2026-11-20T12:00:00.000Z","most_requests":7,"bound_seconds":null,"connections":3,"rate":1.5,"abandon":0.25,"seed":7,"quantity":1,"alone":true,"tokens":true,"without_ledger":false,"users":null,"pay":0.0,"pay_late":0.0,"cancel":0.0,"returns":0.0,"again":0.02,"urls":["http://a","http://b"],"item":"shoe","before":{"stock":2,"lucky":0,"initial":2,"orders":0,"entries":null,"held":null,"units":null,"per_order":null,"per_user":null,"hold_seconds":null,"sale":1}}}
{"attempt":{"order":"run-0","change":null,"quantity":1,"to":0,"sent":1000,"ended":1999,"outcome":"unknown","status":null,"why":"broken connection","final":false}}
{"attempt":{"order":"run-1","change":null,"quantity":1,"to":1,"sent":2000,"ended":2999,"outcome":"unknown","status":null,"why":"client went away","final":false}}
{"attempt":{"order":"run-0","change":null,"quantity":1,"to":1,"sent":3000,"ended":3999,"outcome":"ok","status":200,"remaining":1,"instance":"8080","token":-3,"position":1,"replayed":true}}
{"attempt":{"order":"run-2","change":null,"quantity":1,"to":1,"sent":4000,"ended":4999,"outcome":"failed","status":503,"why":"lock-unavailable","final":false}}
{"attempt":{"order":"run-2","change":null,"quantity":1,"to":0,"sent":5000,"ended":5999,"outcome":"failed","status":409,"why":"sold-out","final":true}}
{"attempt":{"order":"run-3","change":null,"quantity":1,"to":0,"sent":6000,"ended":6999,"outcome":"failed","status":400,"why":"bad-item","final":true}}
{"attempt":{"order":"run-4","change":null,"quantity":1,"to":0,"sent":7000,"ended":7999,"outcome":"unknown","status":500,"why":"","final":true}}
{"order":{"position":1,"event":"reserved","order":"run-0","user":"","quantity":1,"remaining":1,"instance":"8080","token":-3}}
{"state":{"instance":1,"state":{"stock":1,"lucky":1,"initial":2,"orders":1,"entries":null,"held":null,"units":null,"per_order":null,"per_user":null,"hold_seconds":null,"sale":1}}}
{"state":{"instance":0,"state":null}}
{"end":{"attempts":7,"ledger":1,"orders":6,"interrupted":false}}
"#;

/// A run with users, holds, and changes of orders.
const CHANGED: &str = r#"
{"run":{"format":4,"version":"0.1.0","run":"run","started":"2026-11-23T12:00:00.000Z","most_requests":1,"bound_seconds":null,"connections":1,"rate":null,"abandon":0.0,"seed":7,"quantity":1,"alone":false,"tokens":false,"without_ledger":false,"users":3,"pay":0.5,"pay_late":0.25,"cancel":0.125,"returns":0.25,"again":0.0,"urls":["http://a"],"item":null,"before":{"stock":2,"lucky":0,"initial":2,"orders":0,"entries":0,"held":0,"units":{"held":0,"confirmed":null},"per_order":9,"per_user":2,"hold_seconds":1,"sale":1}}}
{"attempt":{"order":"run-0","change":null,"quantity":1,"to":0,"sent":1000,"ended":1999,"outcome":"ok","status":200,"remaining":1,"instance":"8080","token":3,"position":null,"replayed":false}}
{"attempt":{"order":"run-0","change":"reserved","quantity":1,"to":0,"sent":1999,"ended":2000,"outcome":"ok","status":200,"remaining":1,"instance":"8080","token":3,"position":null,"replayed":true}}
{"attempt":{"order":"run-0","change":"confirmed","quantity":1,"to":0,"sent":2000,"ended":2999,"outcome":"unknown","status":null,"why":"broken connection","final":false}}
{"attempt":{"order":"run-0","change":"confirmed","quantity":1,"to":0,"sent":3000,"ended":3999,"outcome":"ok","status":200,"remaining":1,"instance":"8080","token":3,"position":null,"replayed":false}}
{"attempt":{"order":"run-0","change":"cancelled","quantity":1,"to":0,"sent":4000,"ended":4999,"outcome":"failed","status":409,"why":"order-final","final":true}}
{"order":{"position":1,"event":"reserved","order":"run-0","user":"run-u0","quantity":1,"remaining":1,"instance":"8080","token":3}}
{"order":{"position":2,"event":"confirmed","order":"run-0","user":"run-u0","quantity":1,"remaining":1,"instance":"8080","token":3}}
{"state":{"instance":0,"state":{"stock":1,"lucky":1,"initial":2,"orders":1,"entries":2,"held":0,"units":{"held":0,"confirmed":null},"per_order":9,"per_user":2,"hold_seconds":1,"sale":1}}}
{"end":{"attempts":5,"ledger":2,"orders":1,"interrupted":true}}
"#;

/// The text of a run, with its last line or without it.
fn written(run: &str, end: bool) -> String {
    let history = read(run.trim_start().as_bytes()).expect("it is whole");
    let mut file = tempfile::tempfile().expect("a file");
    let recorder = Recorder::new(file.try_clone().expect("its handle"));
    for line in run.trim().lines() {
        if let line @ (Line::Run(_) | Line::Attempt(_)) =
            serde_json::from_str(line).expect("a line")
        {
            recorder.write(&line);
        }
    }
    if end {
        recorder.finish(&history).expect("the file is writable");
    }
    file.rewind().expect("it is a file");
    std::io::read_to_string(file).expect("it was written")
}

fn json(text: &str) -> Vec<Value> {
    let lines = text.trim().lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("one object a line")
}

/// Goal: a run that was read is written again in the same words, and means what its lines say.
#[test]
fn round_trip() {
    assert_eq!(json(&written(RECORDED, true)), json(RECORDED));
    assert_eq!(json(&written(CHANGED, true)), json(CHANGED));
    let changed = read(CHANGED.trim_start().as_bytes()).expect("it is whole");
    let [order] = &changed.orders[..] else { panic!("one order") };
    let told: Vec<_> = order.told().collect();
    assert_eq!(told, [(Event::Confirmed, 3999), (Event::Confirmed, 4999)]);
    let statuses: Vec<_> = order.asked().map(|(_, asked)| asked.status).collect();
    assert_eq!(statuses, [200, 200, 409].map(Some), "each answer has its own status");
    let recorded = read(written(RECORDED, true).as_bytes()).expect("it is whole");
    let unsettled = recorded.orders.iter().map(|order| order.unsettled.join(" "));
    let expected = ["broken connection", "client went away", "503 lock-unavailable", "", "", ""];
    assert_eq!(unsettled.collect::<Vec<_>>(), expected);
    let [sold, abandoned, refused, others @ ..] = &recorded.orders[..] else { panic!("orders") };
    let FinalOutcome::Acknowledged(answer) = &sold.outcome else { panic!("{sold:?}") };
    assert_eq!((answer.remaining, answer.token, answer.position), (1, Some(-3), Some(1)));
    assert_eq!((sold.attempts, sold.sent, sold.ended, sold.in_doubt), (2, 1000, 3999, true));
    assert!(abandoned.abandoned && abandoned.in_doubt && !abandoned.is_settled());
    assert!(refused.outcome == FinalOutcome::SoldOut && !refused.in_doubt);
    let kinds = others.iter().map(|order| match &order.outcome {
        FinalOutcome::Failed(kind) => (kind.as_str(), order.in_doubt),
        _ => ("", false),
    });
    assert_eq!(kinds.collect::<Vec<_>>(), [("400 bad-item", false), ("500", true), ("", false)]);
    assert_eq!((recorded.after.len(), &recorded.gone[..]), (1, &["http://a".to_owned()][..]));
}

/// Goal: the documentation describes each field of each line.
#[test]
fn every_field_is_described() {
    let described = include_str!("mod.rs").split("\nmod reader;").next().expect("it begins so");
    for line in [json(RECORDED), json(CHANGED)].concat() {
        for (kind, fields) in line.as_object().expect("an object") {
            assert!(described.contains(&format!("`{kind}`")), "{kind}");
            for (name, _) in fields.as_object().expect("an object") {
                assert!(described.contains(&format!("`{name}`")), "{kind}: {name}");
            }
        }
    }
}

fn refused(text: &str) -> String {
    format!("{:#}", read(text.as_bytes()).expect_err("it is no whole run"))
}

/// Goal: reading the file of a killed run, wherever it was cut, says what is missing.
#[test]
fn cut_off() {
    let killed = written(RECORDED, false);
    assert_eq!(
        refused(&killed),
        "it is cut off: 7 attempts and 0 orders of the ledger were recorded, and no end; the run was \
         killed, or could not read the end of the sale, so there is nothing to judge"
    );
    let whole = written(RECORDED, true);
    for cut in 0..whole.len() - 1 {
        let said = refused(&whole[..cut]);
        assert!(said.contains("is cut off") || said.contains("is empty"), "{cut}: {said}");
    }
}

/// Goal: a line that cannot be parsed, or does not belong there, is reported with its number; a missing line is reported.
#[test]
fn lines_that_do_not_belong() {
    let text = written(RECORDED, true);
    let lines: Vec<_> = text.lines().collect();
    let not_of_this_run = "line 2: run-0: this is no attempt of this run";
    for (at, right, wrong, said) in [
        (0, lines[0], lines[1], "line 1: `run` is the first line, and no other"),
        (0, r#""format":4"#, r#""format":3"#, "line 1: format 3 is not known, only 4"),
        (0, r#""rate":1.5"#, r#""rate":0.0"#, "line 1: a rate is 0.001..=1000000.0"),
        (0, r#""urls":["http://a","http://b"]"#, r#""urls":[]"#, "line 1: a run has an"),
        (1, "run-0", "ran-0", "line 2: ran-0: this is no attempt of this run"),
        (1, r#""to":0"#, r#""to":2"#, not_of_this_run),
        (1, r#""ended":1999"#, r#""ended":1"#, not_of_this_run),
        (1, lines[1], "", "lines are missing: 6 attempts and 1 orders of the ledger are in it"),
        (2, lines[2], lines[0], "line 3: `run` is the first line, and no other"),
        (2, lines[2], "7", "not a line of a recorded run: expected value at line 3"),
        (3, lines[3], r#"{"attempt":"#, "at line 5 column"),
        (3, r#""sent":3000"#, r#""sent":1500"#, "line 4: run-0 was sent again before"),
        (lines.len() - 1, "}}", "}}\n7", "not a line of a recorded run: expected value"),
        (lines.len() - 1, "}}", "}}\n{", "not a line of a recorded run: EOF"),
    ] {
        let mut changed: Vec<_> = lines.iter().map(ToString::to_string).collect();
        changed[at] = changed[at].replace(right, wrong);
        let found = refused(&changed.join("\n"));
        assert!(found.contains(said), "{said}: {found}");
    }
}
