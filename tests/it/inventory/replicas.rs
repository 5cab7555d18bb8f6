//! Goal: with replicas to wait for, what is acknowledged survives a failover; and a replica that lags is
//! found out when it is promoted. Method: a second Redis that follows the first one, paused.
