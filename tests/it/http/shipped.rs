//! Goal: the shipped program cannot be made unsafe: it lacks what the lab plugs in, its flags, its fault points, and its ways to
//! remove a safeguard.

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
        "FLASH_SALE_DEMO",
        "Nothing guards the stock",
        "The fence is off",
        "before-write",
        "a fault that was asked for",
        "a fault that the control has asked for",
        "batch-ownership",
        "careful-retry",
        "local-expiry",
        "script-reload",
        "RUNNING WITHOUT",
    ] {
        assert!(!program.contains(text), "{text}");
    }
}
