//go:build e2e

package client

import (
	"fmt"
	"maps"
	"path/filepath"

	"kshare/e2e/harness"
)

// Java is Kafka's own KafkaShareConsumer, of any release since 4.1.
type Java struct {
	Suite    *harness.Suite
	Version  string
	Config   map[string]string // of the consumer, besides what Start sets
	Flags    []string          // of the Java machine
	Callback bool              // an acknowledgement callback is set, see Driver.Told
}

// Name implements Kind.
func (j Java) Name() string {
	if j.Version == j.Suite.Version("KAFKA_NEW") {
		return "java"
	}
	return "java@" + j.Version
}

// RecordLimit implements Kind: KIP-1206 came with 4.2.
func (j Java) RecordLimit() bool { return j.Version >= "4.2" }

// Launch starts the driver program with no client in it yet.
func (j Java) Launch(name string) (*Driver, error) {
	clients := filepath.Join(j.Suite.Root, "java", "target", "clients", j.Version)
	if jars, _ := filepath.Glob(filepath.Join(clients, "kafka-clients-*.jar")); len(jars) == 0 {
		return nil, fmt.Errorf("kafka-clients %s are missing: run e2e/setup.sh full", j.Version)
	}
	classes := filepath.Join(j.Suite.Root, "java", "target", "classes")
	flags := append([]string{"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
		"-cp", classes + ":" + filepath.Join(clients, "*")}, j.Flags...)
	p, err := j.Suite.Start(name, nil, "java", append(flags, "kshare.e2e.Driver")...)
	if err != nil {
		return nil, err
	}
	return &Driver{process: p}, nil
}

// Start implements Kind.
func (j Java) Start(c Config) (ShareClient, error) {
	d, err := j.StartDriver(c)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// StartDriver is Start for those who want more of the driver than every ShareClient has.
func (j Java) StartDriver(c Config) (*Driver, error) {
	config := map[string]string{
		"bootstrap.servers":          c.Bootstrap,
		"group.id":                   c.Group,
		"client.id":                  c.Name,
		"share.acknowledgement.mode": mode(c.Explicit),
	}
	if c.MaxRecords > 0 {
		config["max.poll.records"] = fmt.Sprint(c.MaxRecords)
	}
	if c.Strict {
		config["share.acquire.mode"] = "record_limit"
	}
	if c.Login != nil {
		maps.Copy(config, c.Login.Java())
	}
	maps.Copy(config, j.Config)
	d, err := j.Launch("client-" + c.Name)
	if err != nil {
		return nil, err
	}
	if _, err := d.Call("start", map[string]any{"config": config, "topic": c.Topic, "callback": j.Callback}); err != nil {
		d.Kill()
		return nil, err
	}
	return d, nil
}

func mode(explicit bool) string {
	if explicit {
		return "explicit"
	}
	return "implicit"
}

// ProduceOrdinary sends n numbered records with an ordinary producer.
func (d *Driver) ProduceOrdinary(topic string, n int, config map[string]string) (acknowledged int, err error) {
	a, err := d.Call("produce", map[string]any{"topic": topic, "n": n, "config": config})
	if err != nil {
		return 0, err
	}
	return a.N, nil
}

// ConsumeOrdinary reads n records as a member of an ordinary consumer group and
// returns how many came and a digest of their places and contents.
func (d *Driver) ConsumeOrdinary(topic string, n int, config map[string]string) (got int, digest string, err error) {
	a, err := d.Call("consume", map[string]any{"topic": topic, "n": n, "config": config, "timeoutMs": 60000})
	if err != nil {
		return 0, "", err
	}
	return a.N, a.Digest, nil
}

// Admin performs a call of the AdminClient, which see AdminSide.java for, and returns what came of it. A refusal is in the
// lines too; an error tells that the call could not be made.
func (d *Driver) Admin(bootstrap, call string, args ...string) ([]string, error) {
	if args == nil {
		args = []string{}
	}
	a, err := d.Call("admin", map[string]any{"bootstrap": bootstrap, "call": call, "args": args})
	if err != nil {
		return nil, err
	}
	return a.Lines, nil
}
