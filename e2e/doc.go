// Package e2e tests the built kshare binary with real Kafka, real Redis and real
// clients: several replicas behind a TCP balancer, faults, and an audit that
// counts every record. Its tests are behind the build tag e2e:
//
//	e2e/setup.sh smoke && go test -tags e2e ./e2e
//
// The environment chooses what they run against:
//
//	E2E_TARGET   kshare (default), or native: the same share scenarios straight on
//	             Kafka 4.4 with share groups on, which is the reference
//	E2E_KAFKA    upstream release behind kshare (default: KAFKA_OLD of e2e/versions)
//	E2E_CLIENTS  comma-separated client kinds (default: java,franz,python);
//	             java@4.1.2 runs the Java driver on older clients
//	E2E_SIZE     smoke (default) or full
//	E2E_BROKERS  how many behind kshare (default: 1, in full size 3)
//	E2E_BINARY   a kshare binary to test instead of a fresh build
//
// Logs of every process are kept under e2e/.work and their tails are printed when a
// test fails.
package e2e
