# build    the binary, to bin/kshare
# test     everything that CI runs: lint, unit with the race detector, fuzz targets for
#          a few seconds each, e2e smoke set. Installs what it needs, or says what is missing
# e2e      real Kafka 3.9, real Redis, two replicas, three client kinds, smaller sizes; then
#          the conformance checks on kshare and on Kafka 4.4 itself, with lists of their states
# e2e-native  the share scenarios and conformance checks on Kafka 4.4 itself
# e2e-full the whole matrix at full size: Kafka 3.9 and 4.4 with share groups off, older
#          Java clients, and native Kafka 4.4 as the reference; half an hour of heartbeats of
#          many members
# govulncheck  known vulnerabilities in what kshare calls; needs the network, so it is not part of test
# bench    1,000,000 x 1 KB drained through kshare and from native Kafka, rates and memory; time
#          to the first record of a new group

STATICCHECK = go run honnef.co/go/tools/cmd/staticcheck@v0.8.2
# Left out, and why:
# G115 (conversions of integers) where Kafka's formats and kshare's own are read and written: Kafka's integers are signed,
#      those of encoding/binary and varints are not. Every length is checked against what is left of its input where it is
#      read, and the decoders are fuzzed.
# G404 (math/rand) in the files where it spreads timers. Nonces and names are made by crypto/rand.
# e2e is tests. What else is left out stands at its place, as #nosec with the reason.
GOSEC       = go run github.com/securego/gosec/v2/cmd/gosec@v2.30.0 -quiet -exclude-dir=e2e -exclude-rules='$(GOSEC_RULES)'
GOSEC_RULES = (coordinator|proxy|sharestate)/.*:G115;proxy/(drain|serve/.*|upstream/write)\.go:G404;sharestate/statelog/(lease|outage|view)\.go:G404
FUZZTIME   ?= 5s
GO_E2E      = go test -tags e2e -count=1 -p 1
# From its own folder, for then go test prints the list of checks.
CONFORMANCE = cd e2e/conformance && $(GO_E2E) -timeout 20m

.PHONY: build test unit lint govulncheck fuzz e2e e2e-native e2e-full bench clean

build:
	go build -o bin/kshare ./cmd/kshare

test: lint unit fuzz e2e

unit:
	e2e/setup.sh redis
	TEST_REQUIRE_REDIS=1 go test -race -timeout 15m ./...
	go test -run TestRandomOperations ./sharestate # a million of them; with the race detector they are fewer

lint:
	@test -z "$$(gofmt -l .)" || { echo "gofmt needed:"; gofmt -l .; exit 1; }
	go vet ./...
	go vet -tags e2e ./e2e/...
	$(STATICCHECK) -tags e2e ./...
	$(GOSEC) ./...

govulncheck:
	.ci/govulncheck

fuzz:
	.ci/fuzz $(FUZZTIME)

e2e:
	e2e/setup.sh smoke
	$(GO_E2E) -timeout 20m ./e2e ./e2e/harness ./e2e/client
	$(CONFORMANCE)
	export E2E_TARGET=native && $(CONFORMANCE)

e2e-native: export E2E_TARGET = native
e2e-native:
	e2e/setup.sh smoke
	$(GO_E2E) -timeout 30m ./e2e
	$(CONFORMANCE)

e2e-full: export E2E_SIZE = full
e2e-full:
	e2e/setup.sh full
	. e2e/versions && E2E_KAFKA=$$KAFKA_OLD $(GO_E2E) -timeout 60m -v ./e2e/...
	. e2e/versions && E2E_KAFKA=$$KAFKA_NEW $(GO_E2E) -timeout 60m -v ./e2e
	. e2e/versions && for v in $$JAVA_CLIENTS; do \
	  E2E_CLIENTS=java@$$v $(GO_E2E) -timeout 60m -v ./e2e || exit 1; done
	E2E_TARGET=native $(GO_E2E) -timeout 60m -v ./e2e ./e2e/conformance
	TEST_SIZE=full go test -count=1 -timeout 30m -v -run ManyMembersHeartbeat ./coordinator

bench:
	e2e/setup.sh smoke
	$(GO_E2E) -timeout 60m -run '^$$' -bench . -benchtime 1x -v ./e2e

clean:
	rm -rf bin build e2e/.work e2e/java/target e2e/kafka/target e2e/python/.venv e2e/node/node_modules
