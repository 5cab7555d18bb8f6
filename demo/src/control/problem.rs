//! The problem types of the controls, in addition to those of the service.

use axum::http::StatusCode;
use flash_sale::http::problem::ProblemType;

/// Declares each once: name, word, status, title.
macro_rules! problems {
    ($($(#[doc = $doc:literal])* $name:ident $word:literal $status:ident $title:literal $retry:expr;)*) => {
        $($(#[doc = $doc])*
        pub(super) const $name: &ProblemType = &ProblemType {
            word: $word,
            status: StatusCode::$status,
            title: $title,
            retry_after_seconds: $retry,
        };)*
    };
}

problems! {
    /// The request comes from another site.
    CROSS_SITE "cross-site" FORBIDDEN "Not from another site" None;
    /// No instance has this name.
    UNKNOWN_INSTANCE "unknown-instance" NOT_FOUND "No instance of this name" None;
    /// No run was started at this instance.
    NO_RUN "no-run" NOT_FOUND "No run yet" None;
    /// Only one run at a time.
    RUN_IN_PROGRESS "run-in-progress" CONFLICT "A run is in progress" None;
    /// A fault needs a second running instance.
    NEEDS_INSTANCES "needs-instances" CONFLICT "A second instance is needed" None;
    /// The call needs `Content-Type: application/json`.
    JSON_REQUIRED "json-required" UNSUPPORTED_MEDIA_TYPE "The body must be JSON" None;
    /// Another instance did not carry out a call.
    INSTANCE_UNREACHABLE "instance-unreachable" SERVICE_UNAVAILABLE "Another instance does not answer" Some(1);
}
