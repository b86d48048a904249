//go:build e2e

package harness

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// UpstreamHost is the address that test brokers listen on and advertise. It is an
// odd one so that it can be recognised in whatever a client is told.
const UpstreamHost = "127.0.77.1"

// KafkaOptions describe a KRaft cluster; nodes are broker and controller at once.
type KafkaOptions struct {
	Version     string
	Nodes       int  // default 1
	ShareGroups bool // 4.1 and newer: format with share groups on
	HeapMB      int  // default 512
	Config      map[string]string
	Security    *Security // nil: everybody may do everything without a login
}

// Kafka is a running cluster. Node ids start at 1.
type Kafka struct {
	Version   string
	Bootstrap string // comma-separated; where clients go, by SASL_PLAINTEXT if there is security
	SASLSSL   string // where clients may go by SASL_SSL; empty without security with TLS
	Inner     string // where everything is allowed without a login: Bootstrap, if there is no security
	NodeIDs   []int32
	Nodes     []*Process

	suite   *Suite
	classes string
	ports   int // of each node
	start   []func() (*Process, error)

	security *Security
}

// StartKafka formats and starts a cluster, and returns when every node serves.
func (s *Suite) StartKafka(o KafkaOptions) (*Kafka, error) {
	o.Nodes = max(o.Nodes, 1)
	if o.HeapMB == 0 {
		o.HeapMB = 512
	}
	classes, err := s.KafkaClasses(o.Version)
	if err != nil {
		return nil, err
	}
	k := &Kafka{Version: o.Version, suite: s, classes: classes, ports: 2, security: o.Security}
	inner := 0
	if o.Security != nil {
		k.ports, inner = portsSecured, portInner
	}
	first, err := FreePorts(k.ports*o.Nodes, UpstreamHost)
	if err != nil {
		return nil, err
	}
	clusterID := randomClusterID()
	var voters, seeds, inners, tls []string
	for i := range o.Nodes {
		k.NodeIDs = append(k.NodeIDs, int32(i+1))
		port := first + k.ports*i
		voters = append(voters, fmt.Sprintf("%d@%s:%d", i+1, UpstreamHost, port+portController))
		seeds = append(seeds, fmt.Sprintf("%s:%d", UpstreamHost, port))
		inners = append(inners, fmt.Sprintf("%s:%d", UpstreamHost, port+inner))
		tls = append(tls, fmt.Sprintf("%s:%d", UpstreamHost, port+portSASLSSL))
	}
	k.Bootstrap, k.Inner = strings.Join(seeds, ","), strings.Join(inners, ",")
	if o.Security != nil && o.Security.TLS != nil {
		k.SASLSSL = strings.Join(tls, ",")
	}
	for i := range o.Nodes {
		name := fmt.Sprintf("kafka-%s-%d-node%d", o.Version, first, i+1)
		port := first + k.ports*i
		config := brokerConfig(i+1, o.Nodes, port, filepath.Join(s.Dir, name), strings.Join(voters, ","))
		if o.Security != nil {
			secured, err := o.Security.config(port)
			if err != nil {
				return nil, err
			}
			maps.Copy(config, secured)
		}
		if o.ShareGroups {
			maps.Copy(config, shareTopicConfig(o.Nodes))
		}
		maps.Copy(config, o.Config)
		if err := k.addNode(name, clusterID, config, o); err != nil {
			return nil, err
		}
	}
	if err := k.waitReady(); err != nil || o.Security == nil {
		return k, err
	}
	return k, k.Grant(o.Security.Grants...)
}

func (k *Kafka) addNode(name, clusterID string, config map[string]string, o KafkaOptions) error {
	s := k.suite
	file := filepath.Join(s.Dir, name+".properties")
	if err := writeProperties(file, config); err != nil {
		return err
	}
	format := []string{"format", "-t", clusterID, "-c", file}
	if strings.HasPrefix(o.Version, "4.") && !o.ShareGroups {
		format = append(format, "--feature", "share.version=0")
	}
	if o.Security != nil {
		format = append(format, o.Security.format()...)
	}
	if _, err := s.JavaMain(k.classes, time.Minute, "kafka.tools.StorageTool", format...); err != nil {
		return err
	}
	flags := javaFlags(o.HeapMB)
	if o.Security != nil {
		hosts, err := s.hostsFile()
		if err != nil {
			return err
		}
		flags = append(flags, "-Djdk.net.hosts.file="+hosts)
	}
	start := func() (*Process, error) {
		p, err := s.Start(name, nil, "java", append(slices.Clone(flags), "-cp", k.classes, "kafka.Kafka", file)...)
		if err != nil {
			return nil, err
		}
		return p.Discard(), nil
	}
	p, err := start()
	if err != nil {
		return err
	}
	k.Nodes = append(k.Nodes, p)
	k.start = append(k.start, start)
	return nil
}

func brokerConfig(id, nodes, port int, dir, voters string) map[string]string {
	replicas := fmt.Sprint(min(nodes, 3))
	return map[string]string{
		"node.id":                                  fmt.Sprint(id),
		"process.roles":                            "broker,controller",
		"controller.quorum.voters":                 voters,
		"controller.listener.names":                "CONTROLLER",
		"listeners":                                fmt.Sprintf("PLAINTEXT://%s:%d,CONTROLLER://%s:%d", UpstreamHost, port, UpstreamHost, port+1),
		"advertised.listeners":                     fmt.Sprintf("PLAINTEXT://%s:%d", UpstreamHost, port),
		"listener.security.protocol.map":           "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"log.dirs":                                 dir,
		"auto.create.topics.enable":                "false",
		"offsets.topic.replication.factor":         replicas,
		"offsets.topic.num.partitions":             "4",
		"transaction.state.log.replication.factor": replicas,
		"transaction.state.log.min.isr":            "1",
		"transaction.state.log.num.partitions":     "4",
		"group.initial.rebalance.delay.ms":         "0",
		"log.cleaner.dedupe.buffer.size":           "16777216",
	}
}

func shareTopicConfig(nodes int) map[string]string {
	return map[string]string{
		"share.coordinator.state.topic.replication.factor": fmt.Sprint(min(nodes, 3)),
		"share.coordinator.state.topic.min.isr":            "1",
		"share.coordinator.state.topic.num.partitions":     "4",
	}
}

func (k *Kafka) waitReady() error {
	cl, err := k.inside()
	if err != nil {
		return err
	}
	defer cl.Close()
	return Until("Kafka "+k.Version, 90*time.Second, func() error {
		for _, p := range k.Nodes {
			if !p.Running() {
				return p.Err()
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		req := kmsg.NewPtrMetadataRequest() // raw, for the client's cached answer may be old
		req.Topics = []kmsg.MetadataRequestTopic{}
		md, err := req.RequestWith(ctx, cl)
		if err != nil {
			return err
		}
		if len(md.Brokers) < len(k.Nodes) {
			return fmt.Errorf("%d of %d brokers registered", len(md.Brokers), len(k.Nodes))
		}
		return nil
	})
}

// StopNode stops node i (counted from 0) as an operator does.
func (k *Kafka) StopNode(i int) error { return k.Nodes[i].Stop(60 * time.Second) }

// StartNode starts node i, which must not be running, and does not wait for it.
func (k *Kafka) StartNode(i int) error {
	p, err := k.start[i]()
	if err == nil {
		k.Nodes[i] = p
	}
	return err
}

// RestartNode stops node i as an operator does, starts it again, and waits until the
// whole cluster serves and no replica is behind.
func (k *Kafka) RestartNode(i int) error {
	if err := k.StopNode(i); err != nil {
		return err
	}
	if err := k.StartNode(i); err != nil {
		return err
	}
	return k.WaitInSync()
}

// WaitInSync waits until the whole cluster serves, every partition has a leader, and
// all its replicas are in sync.
func (k *Kafka) WaitInSync() error {
	if err := k.waitReady(); err != nil {
		return err
	}
	return k.waitInSync()
}

// waitInSync waits until every partition has a leader and all its replicas in sync.
func (k *Kafka) waitInSync() error {
	cl, err := k.inside()
	if err != nil {
		return err
	}
	defer cl.Close()
	return Until("replicas in sync", 60*time.Second, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		req := kmsg.NewPtrMetadataRequest() // raw, for the client's cached answer may be old
		req.Topics = nil                    // all
		md, err := req.RequestWith(ctx, cl)
		if err != nil {
			return err
		}
		for _, t := range md.Topics {
			for _, p := range t.Partitions {
				if p.ErrorCode != 0 || p.Leader < 0 || len(p.ISR) < len(p.Replicas) {
					return fmt.Errorf("%s-%d: leader %d, in sync %v of %v, code %d", *t.Topic, p.Partition, p.Leader, p.ISR, p.Replicas, p.ErrorCode)
				}
			}
		}
		return nil
	})
}

// Addresses tells for each address of the cluster, those of controllers included,
// which node has it.
func (k *Kafka) Addresses() map[string]int32 {
	of := map[string]int32{}
	for i, seed := range strings.Split(k.Bootstrap, ",") {
		var port int
		fmt.Sscanf(seed, UpstreamHost+":%d", &port)
		for p := range k.ports {
			of[fmt.Sprintf("%s:%d", UpstreamHost, port+p)] = k.NodeIDs[i]
		}
	}
	return of
}

// Close ends all nodes.
func (k *Kafka) Close() {
	for _, p := range k.Nodes {
		p.Kill()
	}
}

// KafkaClasses is the class path of a release.
func (s *Suite) KafkaClasses(version string) (string, error) {
	dir := filepath.Join(s.Root, "kafka", "target", version)
	if jars, _ := filepath.Glob(filepath.Join(dir, "kafka_*.jar")); len(jars) == 0 {
		return "", fmt.Errorf("kafka %s jars are missing: run e2e/setup.sh full", version)
	}
	return filepath.Join(dir, "*"), nil
}

// JavaMain runs a class to its end and returns its standard output.
func (s *Suite) JavaMain(classes string, timeout time.Duration, class string, args ...string) (string, error) {
	return s.Output(timeout, nil, "java", append(append(javaFlags(256), "-cp", classes, class), args...)...)
}

func javaFlags(heapMB int) []string {
	return []string{
		fmt.Sprintf("-Xmx%dm", heapMB), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true",
		"-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
	}
}

func writeProperties(file string, config map[string]string) error {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(config)) {
		fmt.Fprintf(&b, "%s=%s\n", key, config[key])
	}
	return os.WriteFile(file, []byte(b.String()), 0o644)
}

func randomClusterID() string {
	var id [16]byte
	rand.Read(id[:])
	id[0] &= 0x7f // the tools take an id that begins with '-' for a flag
	return base64.RawURLEncoding.EncodeToString(id[:])
}
