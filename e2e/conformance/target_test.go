//go:build e2e

package conformance

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"kshare/e2e/harness"
)

var suite *harness.Suite

func native() bool { return os.Getenv("E2E_TARGET") == "native" }
func full() bool   { return os.Getenv("E2E_SIZE") == "full" }

// differences is all in which kshare differs from a broker on purpose.
type differences struct {
	// noHint is CurrentLeader's leader and epoch beside an error that has no hint: franz-go before 1.22.3 takes 0 for a
	// broker id there.
	noHint int32
	// startLags: DescribeShareGroupOffsets tells the start offset from before the last acknowledgement, because a
	// broker writes it down together with the states that move it. Lag is right all the same.
	startLags bool
	// sleepsThroughRelease: a release or the close of a session does not end another member's waiting fetch.
	sleepsThroughRelease bool
	// deadLetterGuard: a topic takes dead letters only if its config errors.deadletterqueue.group.enable says so, which
	// older clusters do not know. For kshare the prefix of its name is the guard.
	deadLetterGuard bool
	// deadLetterPrefixAtOnce: the name of a dead letter topic without the prefix is refused when it is set, not only when
	// there are dead letters.
	deadLetterPrefixAtOnce bool
	// statesAtLeader: a broker has the state of what it leads alone. Elsewhere acknowledgements fail, and with a new leader
	// all that was acquired is forgotten.
	statesAtLeader bool
	// lostLeaderEpoch: CurrentLeader of a partition without a leader has its epoch.
	lostLeaderEpoch bool
	// cutIsLost: records that come to stand where an unclean election has cut the log are not delivered below the start offset.
	cutIsLost bool
	// clusterConfigACLs: before 4.0 Kafka has no configs of groups, so that only ACLs for the cluster's can decide who may
	// see and change them.
	clusterConfigACLs bool
	// deadGroups: before 4.0 DescribeGroups ends with version 5, in which a group that does not exist is no error but Dead.
	deadGroups bool
	// noShareState: the requests by which brokers keep the state of share-partitions with each other are not served.
	noShareState bool
	// keepsAnswers is for how long what a user may do is not asked for again, nor whether a login has ended.
	keepsAnswers time.Duration
	// ownConfigs are group configs that kshare has beyond Kafka's.
	ownConfigs []string
}

func allowed() differences {
	if native() {
		return differences{noHint: 0, startLags: true, sleepsThroughRelease: true, deadLetterGuard: true,
			statesAtLeader: true, lostLeaderEpoch: true, cutIsLost: true}
	}
	return differences{noHint: -1, deadLetterPrefixAtOnce: true, clusterConfigACLs: strings.HasPrefix(upstreamVersion(), "3."),
		deadGroups: strings.HasPrefix(upstreamVersion(), "3."), noShareState: true, keepsAnswers: 5 * time.Second,
		ownConfigs: []string{"share.release.backoff.ms", "share.release.backoff.max.ms"}}
}

// The share settings that both targets run with, so that the tests do not have to wait for Kafka's defaults.
const (
	sessionLimit = 1000 // group.share.max.share.sessions
	shortLock    = 5000 // ms; what tests of a lock's end set
	groupLimit   = 100  // group.share.max.size
)

var shareSettings = map[string]string{
	"group.share.min.record.lock.duration.ms": "1000",
	"group.share.min.session.timeout.ms":      "1000",
	"group.share.min.heartbeat.interval.ms":   "500",
	"group.share.assignment.interval.ms":      "0",
	"group.share.max.size":                    fmt.Sprint(groupLimit),
	"group.share.max.share.sessions":          fmt.Sprint(sessionLimit),
}

// guardSettings: access is open unless a test denies it.
var guardSettings = map[string]string{
	"authorizer.class.name":           "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
	"allow.everyone.if.no.acl.found":  "true",
	"log.cleaner.backoff.ms":          "300", // compaction is waited for, and retention
	"log.retention.check.interval.ms": "500",
	"log.initial.task.delay.ms":       "500",
}

// openSettings: without an authorizer. With one, Kafka 4.4.0 fails a ShareFetch whole (UNKNOWN_SERVER_ERROR, a null
// pointer) if the session holds a topic id that it does not know.
var openSettings = map[string]string{
	"log.cleaner.backoff.ms":          "300",
	"log.retention.check.interval.ms": "500",
	"log.initial.task.delay.ms":       "500",
}

type target struct {
	bootstrap string
	kafka     *harness.Kafka
	replicas  *harness.Replicas // nil on native
	redis     *harness.Redis    // nil on native
	secured   bool
}

// startOpen and startGuarded start what tests run on, at its first use. kshare is always over a guarded Kafka.
var (
	startOpen    = sync.OnceValues(func() (*target, error) { return startNative(1, openSettings) })
	startGuarded = sync.OnceValues(func() (*target, error) {
		if native() {
			return startNative(1, guardSettings)
		}
		return startKshare(1, guardSettings)
	})
)

func startTarget(s setup) (*target, error) {
	switch {
	case s.secured:
		return startSecured()
	case native() && !s.guarded:
		return startOpen()
	}
	return startGuarded()
}

func startNative(brokers int, settings map[string]string) (*target, error) {
	return startSecuredNative(brokers, settings, nil)
}

func startSecuredNative(brokers int, settings map[string]string, sec *harness.Security) (*target, error) {
	config := maps.Clone(settings)
	maps.Copy(config, shareSettings)
	k, err := suite.StartKafka(harness.KafkaOptions{Version: suite.Version("KAFKA_NEW"), Nodes: brokers, ShareGroups: true, Config: config, Security: sec})
	if err != nil {
		return nil, err
	}
	return &target{bootstrap: k.Bootstrap, kafka: k, secured: sec != nil}, nil
}

// upstreamVersion is of what kshare runs over.
func upstreamVersion() string { return cmp.Or(os.Getenv("E2E_KAFKA"), suite.Version("KAFKA_OLD")) }

func startKshare(brokers int, settings map[string]string) (*target, error) {
	return startSecuredKshare(brokers, settings, nil)
}

func startSecuredKshare(brokers int, settings map[string]string, sec *harness.Security) (*target, error) {
	version := upstreamVersion()
	config := maps.Clone(settings)
	if strings.HasPrefix(version, "3.") {
		config["group.coordinator.rebalance.protocols"] = "classic,consumer" // as newer ones have it
	}
	k, err := suite.StartKafka(harness.KafkaOptions{Version: version, Nodes: brokers, Config: config, Security: sec})
	if err != nil {
		return nil, err
	}
	r, err := suite.StartRedis()
	if err != nil {
		return nil, err
	}
	var flags []string
	for _, key := range slices.Sorted(maps.Keys(shareSettings)) {
		flags = append(flags, "--broker-config", key+"="+shareSettings[key])
	}
	if sec != nil {
		flags = append(flags, "--broker-config", "errors.deadletterqueue.auto.create.topics.enable=true")
	}
	rs, err := suite.StartReplicas(2, k, r, flags...)
	if err != nil {
		return nil, err
	}
	suite.OnClose(rs.Close)
	return &target{bootstrap: rs.Bootstrap, kafka: k, replicas: rs, redis: r, secured: sec != nil}, nil
}

// count is the number of replicas to ask; on native there is only the node itself.
func (tg *target) count() int {
	if tg.replicas == nil {
		return 1
	}
	return tg.replicas.Count()
}

// at is the address of a node as replica i serves it; on native there is only the node.
func (tg *target) at(replica int, node string) string {
	if tg.replicas == nil {
		return node
	}
	_, port, _ := net.SplitHostPort(node)
	return net.JoinHostPort(harness.ReplicaHost(replica), port)
}

func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "100") // what runs in parallel here mostly waits
	var err error
	if suite, err = harness.NewSuite(); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
	code := m.Run()
	suite.Close()
	list := matrix.String() + states.String()
	os.WriteFile(filepath.Join(suite.Dir, "conformance.txt"), []byte(list), 0o644)
	fmt.Print(list)
	os.Exit(code)
}

// checks are those that have a test here: on the wire, of the Java consumer, of dead letters.
var checks = [...]struct{ first, last int }{{1, 136}, {139, 139}}

// checkStates collects what became of each check.
type checkStates struct {
	mu    sync.Mutex
	state map[int]string
	name  map[int]string
}

var states = checkStates{state: map[int]string{}, name: map[int]string{}}

// record books the check that a test's name begins with, at the end of the test. Sub-tests count with their parent.
func (c *checkStates) record(t *testing.T) {
	t.Helper()
	if strings.Contains(t.Name(), "/") {
		return
	}
	name := strings.TrimPrefix(t.Name(), "TestCheck")
	digits, title, ok := strings.Cut(name, "_")
	n, err := strconv.Atoi(digits)
	if !ok || err != nil {
		t.Fatalf("%s does not name a check", t.Name())
	}
	t.Cleanup(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.name[n] = title
		switch {
		case t.Failed():
			c.state[n] = "FAIL"
		case t.Skipped():
			c.state[n] = "skip"
		default:
			c.state[n] = "pass"
		}
	})
}

func (c *checkStates) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	count := map[string]int{}
	var all []string
	for _, of := range checks {
		for n := of.first; n <= of.last; n++ {
			state, ok := c.state[n]
			if !ok {
				count["not run"]++
				continue
			}
			count[state]++
			fmt.Fprintf(&b, "check %3d  %s  %s\n", n, state, c.name[n])
		}
		if of.first == of.last {
			all = append(all, strconv.Itoa(of.first))
			continue
		}
		all = append(all, fmt.Sprintf("%d-%d", of.first, of.last))
	}
	on := "kshare"
	if native() {
		on = "native Kafka"
	}
	fmt.Fprintf(&b, "checks %s on %s: %d pass, %d fail, %d skip, %d not run\n", strings.Join(all, " "), on,
		count["pass"], count["FAIL"], count["skip"], count["not run"])
	return b.String()
}
