//! The page, in a real browser: headless Chromium by its driver, one for all tests, and each test with a sale
//! of its own.

mod accessibility;
mod browser;
mod looks;
mod outages;
mod pictures;
mod scene;
mod selling;
