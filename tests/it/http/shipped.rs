//! Goal: the shipped program has no way to be made unsafe. Method: the program itself, and calls to its router.

use crate::shop::{Shop, ShopOptions};

/// Goal: what the lab plugs in is not in it: its flags, its fault points, its ways to remove a safeguard.
#[test]
fn nothing_of_the_laboratory_is_in_it() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_flash-sale")).unwrap();
    let program = String::from_utf8_lossy(&program);
    assert!(program.contains("FLASH_SALE_LOCK_TTL"), "the search finds what is there");
    for text in [
        "FLASH_SALE_CONTROL",
        "FLASH_SALE_LOCK_AT",
        "FLASH_SALE_WITHOUT",
        "FLASH_SALE_FAULT_AT",
        "FLASH_SALE_STARVE_FILE",
        "FLASH_SALE_DEMO",
        "Nothing guards the stock",
        "The fence is off",
        "before-write",
        "a fault that was asked for",
        "batch-ownership",
        "careful-retry",
        "local-expiry",
        "script-reload",
        "RUNNING WITHOUT",
        "Scoreboard",
        "both-status",
    ] {
        assert!(!program.contains(text), "{text}");
    }
}

#[tokio::test]
async fn it_has_no_controls() {
    let shop = Shop::selling(1, ShopOptions::default()).await;
    for line in ["GET /demo", "POST /demo/run", "PUT /demo/fence", "POST /demo/fault"] {
        let headers = [("host", "127.0.0.1"), ("content-type", "application/json")];
        shop.call_with(line, &headers, "{}").await.problem(404, "not-found");
    }
}
