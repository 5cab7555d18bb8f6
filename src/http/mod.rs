//! The HTTP interface of one instance.
