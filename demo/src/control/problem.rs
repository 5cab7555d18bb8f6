//! The problem types of the controls, in addition to those of the service.

use axum::http::StatusCode;
use flash_sale::http::problem::ProblemType;

/// The instance has no control, or none that answers.
pub(crate) const NO_CONTROL: &ProblemType =
    &of("no-control", StatusCode::SERVICE_UNAVAILABLE, "No control answers");
/// No instance has this name.
pub(super) const UNKNOWN_INSTANCE: &ProblemType =
    &of("unknown-instance", StatusCode::NOT_FOUND, "No instance of this name");
/// No run was started.
pub(super) const NO_RUN: &ProblemType = &of("no-run", StatusCode::NOT_FOUND, "No run yet");
/// Only one run at a time.
pub(super) const RUN_IN_PROGRESS: &ProblemType =
    &of("run-in-progress", StatusCode::CONFLICT, "A run is in progress");
/// A fault needs a second running instance.
pub(super) const NEEDS_INSTANCES: &ProblemType =
    &of("needs-instances", StatusCode::CONFLICT, "A second instance is needed");
/// An instance did not carry out a call.
pub(super) const INSTANCE_UNREACHABLE: &ProblemType =
    &of("instance-unreachable", StatusCode::SERVICE_UNAVAILABLE, "An instance does not answer");

const fn of(word: &'static str, status: StatusCode, title: &'static str) -> ProblemType {
    ProblemType { word, status, title, retry_after_seconds: None }
}
