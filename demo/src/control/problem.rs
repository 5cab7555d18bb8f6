//! The problem types of the controls, in addition to those of the service.

use axum::http::StatusCode;
use flash_sale::http::problem::ProblemType;

pub(super) const UNKNOWN_INSTANCE: &ProblemType =
    &of("unknown-instance", StatusCode::NOT_FOUND, "No instance of this name");
pub(super) const NO_RUN: &ProblemType = &of("no-run", StatusCode::NOT_FOUND, "No run yet");
pub(super) const RUN_IN_PROGRESS: &ProblemType =
    &of("run-in-progress", StatusCode::CONFLICT, "A run is in progress");
pub(super) const NEEDS_INSTANCES: &ProblemType =
    &of("needs-instances", StatusCode::CONFLICT, "A second instance is needed");
pub(super) const INSTANCE_UNREACHABLE: &ProblemType =
    &of("instance-unreachable", StatusCode::SERVICE_UNAVAILABLE, "An instance does not answer");

const fn of(word: &'static str, status: StatusCode, title: &'static str) -> ProblemType {
    ProblemType { word, status, title, retry_after_seconds: None }
}
