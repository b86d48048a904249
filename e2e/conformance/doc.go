// Package conformance asks a share group server, over plain TCP connections and without a client library, for every
// rule: discovery (KIP-932, checks 1-9), group membership (10-38), group ids of the wrong type (39-44), sessions (45-70),
// acquisition (71-95), acknowledgement (96-114), administration and configs (115-130); and, through Kafka's own Java
// consumer, for what applications see of them (132-136); for dead letters (KIP-1191, 139); and for who may do what (131), of
// which a table is printed. The same expectations hold for kshare over a Kafka without share groups and for Kafka 4.4
// itself; target_test.go names the few differences.
//
//	go test -tags e2e ./e2e/conformance                     kshare, two replicas, over KAFKA_OLD of e2e/versions
//	E2E_TARGET=native go test -tags e2e ./e2e/conformance   Kafka 4.4
//
// TestThreeBrokers has a cluster of its own, for what leaders do: elsewhere than on their port, moving, dying, and cutting
// the log.
//
// Logins, their ends, ACLs and who gets no byte are tried on brokers with SASL and StandardAuthorizer, which kshare enters as
// a user with the grants of the README alone; TestThreeSecuredBrokers has three of them, and clients that speak TLS.
//
// E2E_SIZE=full makes waits as long as the rules say. Besides the checks there are histories: random requests whose answers
// and dead letters by Kafka 4.4.0 are kept in testdata, as is what the command-line tools print there (go test ... -run
// 'Histories|Check126|Check139' -args -record, on native, writes them anew). At the end the state of each check is printed;
// it is also in e2e/.work/run-*/conformance.txt.
package conformance
