//! Goal: instances of the previous version and of this one sell side by side, as in a rolling update. Method: the scripts of the
//! previous version run over the records of this one, and the other way round.

use flash_sale::inventory::{
    Accepted, Action, Attempt, Entry, Event, NewSale, Order, Outcome, Terms, Units, User,
};
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, ToRedisArgs};
use testkit::shared::fresh_database;

use super::changes::call as call_of;
use super::{ITEM, connect, order, token};

const STATE: &str = include_str!("previous_version/state.lua");
const WRITE: &str = include_str!("previous_version/script.lua");
const READ: &str = include_str!("previous_version/read.lua");

const KEYS: [&str; 13] = [
    "stock", "lucky", "initial", "orders", "ledger", "fence", "sale", "doubt", "terms", "changes",
    "holds", "buyers", "sales",
];

/// The answer of a script of the previous version to an instance whose watermark has this entry.
async fn call<T: FromRedisValue>(
    redis: &mut MultiplexedConnection,
    script: &str,
    latest: [&str; 2],
    arguments: impl ToRedisArgs,
) -> T {
    let mut call = redis::cmd("EVAL");
    call.arg(format!("#!lua\n{STATE}{script}")).arg(KEYS.len()).arg(&KEYS).arg(&["", ""]);
    call.arg(&latest).arg(arguments).query_async(redis).await.unwrap()
}

fn writer(entry: &Accepted) -> (&str, Option<&str>) {
    (&entry.instance, entry.holder.as_deref())
}

type Done = (String, String, bool, Vec<String>);
type Found = (redis::Value, String, String, String, Vec<String>, Vec<Option<String>>);

#[tokio::test]
async fn it_sells_beside_this_one() {
    let url = fresh_database().await;
    let (inventory, client) = (connect(&url).await, redis::Client::open(&*url).unwrap());
    let redis = &mut testkit::redis::connect(&client).await.unwrap();
    let (id, is_named) = ("first".parse().unwrap(), true);
    let terms = Terms { hold_seconds: Some(600), per_user: Some(2), ..Terms::default() };
    let sale = NewSale { id, is_named, terms, ..NewSale::from(9) };
    inventory.start(&ITEM, Some(token(1)), sale.clone()).await.unwrap();
    let terms: String = redis::cmd("GET").arg("terms").query_async(redis).await.unwrap();
    let again = ["start", "cafe 2", "9", &terms, "first", ""];
    let (.., again): Done = call(redis, WRITE, ["", ""], &again).await;
    assert_eq!(again, ["again"]);

    let user = User::new("ann").unwrap();
    let new = |id: &str, action| Order { user: user.clone(), action, ..order(id, 1) };
    let sell = async |orders: &[(Order, u32)]| {
        let attempts: Vec<_> = orders
            .iter()
            .map(|(order, request)| Attempt {
                order,
                instance: "new",
                holder: Some("holder"),
                request: Some(*request),
                sent_under: None,
            })
            .collect();
        inventory.reduce_attempts(&ITEM, Some(token(3)), &attempts).await.unwrap()
    };
    sell(&[(new("a", Action::Reserve), 7), (new("b", Action::Reserve), 8)]).await;
    sell(&[(new("b", Action::Confirm), 9)]).await;
    let keys = ["ann\ta", "ann\tb"];
    let (_, found): (bool, Found) =
        call(redis, READ, ["", ""], &["lookup", keys[0], keys[1]]).await;
    let (.., records, changes) = found;
    let fields: Vec<_> = records[0].split('\t').collect();
    assert_eq!((fields.len(), fields[5]), (9, "new#00000007@holder"));

    let mut batch = vec!["reduce", "cafe 3", "", "old", ""];
    batch.extend([keys[0], "1", "ann", keys[0], "confirm", "ann", keys[1], "confirm", "ann"]);
    batch.extend(["c", "1", "", "bob\td", "1", "bob"]);
    let units = async || inventory.stock(&ITEM).await.unwrap().units;
    assert_eq!(units().await, Units { held: Some(1), confirmed: Some(1) });
    let (.., answers): Done = call(redis, WRITE, [keys[0], &records[0]], &batch).await;
    assert_eq!(answers[0], format!("repeated\t{}", records[0]));
    assert!(answers[1].starts_with("changed\t\nconfirmed\t4\t1\t7\t"), "{answers:?}");
    let change = changes[1].as_ref().unwrap();
    assert_eq!(answers[2], format!("unchanged\t{change}"));
    assert_eq!(answers[3], "user-required");
    // the previous version's script did not count the held units
    assert_eq!(units().await, Units::default());
    // an instance of the previous version whose watermark has a change reads on
    let (_, (.., all)): (bool, (String, String, Vec<redis::Value>)) =
        call(redis, READ, [keys[1], change], &["ledger", "0", "9", "", ""]).await;
    assert_eq!(Vec::<String>::from_redis_value(all[0].clone()).unwrap().len(), 5);

    let bob = Order { user: User::new("bob").unwrap(), ..order("d", 1) };
    let outcomes = sell(&[
        (new("a", Action::Reserve), 7),
        (new("a", Action::Confirm), 7),
        (new("b", Action::Confirm), 9),
        (bob, 7),
    ])
    .await;
    let told: Vec<_> = outcomes
        .iter()
        .map(|(outcome, _)| match outcome {
            Outcome::Reserved(entry) => ("reserved", writer(entry)),
            Outcome::Repeated(entry) => ("repeated", writer(entry)),
            Outcome::Changed { change, is_repeated: true } => ("unchanged", writer(change)),
            Outcome::Changed { change, .. } => ("changed", writer(change)),
            other => panic!("{other:?}"),
        })
        .collect();
    let (here, old) = (("new", Some("holder")), ("old", None));
    let expected = [("reserved", here), ("unchanged", old), ("changed", here), ("repeated", old)];
    assert_eq!(told, expected);
    assert_eq!(units().await, Units { held: Some(1), confirmed: Some(2) });
    // an order comes back, and its return is the latest entry that an instance of the previous version remembers
    sell(&[(new("b", Action::Return), 8)]).await;
    let field = "\nann\tb";
    let entry: String =
        redis::cmd("HGET").arg("changes").arg(field).query_async(redis).await.unwrap();
    let mut batch = vec!["reduce", "cafe 3", "", "old", ""];
    batch.extend([keys[1], "cancel", "ann", "bob\te", "1", "bob"]);
    let (.., answers): Done = call(redis, WRITE, [field, &entry], &batch).await;
    assert!(answers[0] == "final" && answers[1].starts_with("2\t7\t1\t6\t"), "{answers:?}");
    let outcomes = sell(&[(new("b", Action::Cancel), 8)]).await;
    assert!(matches!(outcomes[0].0, Outcome::Over { event: Event::Returned, .. }), "{outcomes:?}");
    assert_eq!(units().await, Units { held: Some(2), confirmed: Some(1) });
    let page = inventory.ledger(&ITEM, 0, 5).await.unwrap().entries;
    let page: Vec<_> = page.into_iter().filter_map(Entry::order).collect();
    assert_eq!(page.iter().map(writer).collect::<Vec<_>>(), [here, here, here, old, old]);
}

/// Goal: scripts of the previous version survive each change of a sale, and keep to it: no entry that they cannot read is damage to
/// them.
#[tokio::test]
async fn it_sells_beside_changes() {
    let url = fresh_database().await;
    let (inventory, client) = (connect(&url).await, redis::Client::open(&*url).unwrap());
    let redis = &mut testkit::redis::connect(&client).await.unwrap();
    let terms = Terms { hold_seconds: Some(600), per_user: Some(2), ..Terms::default() };
    let sale = NewSale { id: "s".parse().unwrap(), is_named: true, terms, ..NewSale::from(1) };
    inventory.start(&ITEM, Some(token(1)), sale).await.unwrap();
    let mut latest = [String::new(), String::new()];
    for (number, (body, orders, answers)) in [
        (r#"{"add":3}"#, "a 1 ann b 1 ann", "2 2"),
        (r#"{"paused":true}"#, "c 1 bob a 1 ann", "not-started repeated"),
        (r#"{"paused":false,"add":-1}"#, "c 1 bob c confirm bob", "2 changed"),
        (r#"{"per_user":1,"add":3,"hold_seconds":5}"#, "d 1 bob d 2 eve", "user-limit user-limit"),
        (r#"{"per_order":1,"per_user":2}"#, "d 2 eve d 1 eve", "order-limit 2"),
        (r#"{"ends_at":"now"}"#, "e 1 eve d cancel eve", "ended changed"),
        (r#"{"ends_at":"2199-12-31T23:59:59Z"}"#, "f 1 eve", "2"),
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("k{number}");
        let made =
            inventory.change_sale(&ITEM, Some(token(3)), "new", &call_of(&key, "s", body)).await;
        let made = made.unwrap();
        assert_eq!(made.stock.version, number as u64 + 1);
        // an instance of the previous version remembers the change as the latest entry
        latest[0] = format!("\n\t{key}");
        latest[1] =
            redis::cmd("HGET").arg("changes").arg(&latest[0]).query_async(redis).await.unwrap();
        let fields: Vec<_> = orders.split(' ').collect();
        let mut batch: Vec<String> = ["reduce", "cafe 3", "", "old", ""].map(str::to_owned).into();
        for order in fields.chunks(3) {
            let [id, word, user] = order else { panic!("{orders}") };
            batch.extend([format!("{user}\t{id}"), (*word).to_owned(), (*user).to_owned()]);
        }
        let (.., told): Done = call(redis, WRITE, [&latest[0], &latest[1]], &batch).await;
        let told: Vec<_> = told.iter().map(|told| told.split('\t').next().unwrap()).collect();
        assert_eq!(told.join(" "), answers, "{body}");
        let (_, found): (bool, Found) =
            call(redis, READ, [&latest[0], &latest[1]], &["lookup", "ann\ta"]).await;
        assert!(found.4[0].starts_with("2\t"), "{body}");
        assert!(inventory.stock(&ITEM).await.unwrap().is_balanced(), "{body}");
    }
    // a batch counts the orders that the previous version accepted meanwhile
    let confirm =
        Order { user: User::new("ann").unwrap(), action: Action::Confirm, ..order("a", 1) };
    inventory.reduce(&ITEM, Some(token(3)), "new", &[confirm]).await.unwrap();
    let stock = inventory.stock(&ITEM).await.unwrap();
    assert_eq!((stock.initial, stock.lucky, stock.entries), (6, 4, 15));
    assert_eq!(stock.units, Units { held: Some(2), confirmed: Some(2) });
    // a sale that the previous version starts has no changes
    let next = ["start", "cafe 4", "2", r#"{"id":"t","named":true,"initial":2}"#, "t", "*"];
    let _: Done = call(redis, WRITE, ["", ""], &next).await;
    let stock = inventory.stock(&ITEM).await.unwrap();
    assert_eq!((stock.version, stock.initial, stock.entries), (0, 2, 0));
}
