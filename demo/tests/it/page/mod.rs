//! The page in headless Chromium. All tests share one browser; each has a sale of its own.

mod accessibility;
mod browser;
mod looks;
mod operators;
mod outages;
mod pictures;
mod scene;
mod selling;
mod stage;
