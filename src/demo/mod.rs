//! Everything on this machine: private etcd and Redis, the instances, the run, the verdict.
