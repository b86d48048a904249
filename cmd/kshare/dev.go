package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"kshare/cmd/kshare/demo"
)

const (
	replicaStep = 1000 // ports between one replica and the next
	devBrokers  = 3
	// originEmbedded marks a Redis that dev started itself.
	originEmbedded = "embedded"
)

// demoBrokerConfigs let the demo's group have a short lock and frequent heartbeats: it shows a lock that expires, and nobody wants to
// wait 15 s for it.
var demoBrokerConfigs = map[string]string{
	"group.share.min.record.lock.duration.ms": "1000",
	"group.share.min.heartbeat.interval.ms":   "1000",
}

// demoGroupConfigs let a new consumer begin at once; Kafka's defaults have it wait for its second heartbeat.
var demoGroupConfigs = map[string]string{
	"share.assignment.interval.ms": "0",
	"share.heartbeat.interval.ms":  "1000",
}

// embedded says whether dev gives this key's value itself.
func embedded(key string) bool {
	cluster := key == "upstream" || strings.HasPrefix(key, "upstream-") || strings.HasPrefix(key, "login-")
	ours := key == "redis-prefix" || key == "redis-lease"
	return cluster || key == "redis" || (strings.HasPrefix(key, "redis-") && !ours)
}

// devCommand runs replicas on an embedded cluster and an embedded Redis, until Ctrl-C or the end of the demo.
func devCommand(args []string, stdout, stderr io.Writer) error {
	number, withDemo := "2", false
	c, err := load(processInputs(args), func(fs *flag.FlagSet) {
		fs.StringVar(&number, "replicas", number, "")
		fs.BoolVar(&withDemo, "demo", false, "")
	})
	if err != nil {
		return err
	}
	replicas, err := strconv.Atoi(number)
	if err != nil || replicas < 1 || replicas > 9 {
		return &configError{key: "replicas", source: "flag --replicas", problem: fmt.Sprintf("%q is not a number of replicas, give 1 to 9", number)}
	}
	for _, s := range settings {
		if source, given := c.origin[s.key]; given && embedded(s.key) {
			return &configError{key: s.key, source: source, problem: "kshare dev brings its own cluster and Redis, leave it away or use kshare serve"}
		}
	}
	if source, given := c.origin["listen-tls-cert"]; given && withDemo {
		return &configError{key: "listen-tls-cert", source: source, problem: "the demo's own clients speak plain text, leave it away or leave --demo away"}
	}
	if _, given := c.origin["drain"]; !given {
		c.Drain = time.Second
	}
	for name, value := range demoBrokerConfigs {
		if _, given := c.BrokerConfig[name]; withDemo && !given {
			c.BrokerConfig[name] = value
		}
	}
	ctx, stop := untilSignal()
	defer stop()
	d := &dev{c: c, out: &lockedWriter{w: stdout}, log: devLog(stderr, &c)}
	return d.run(ctx, replicas, withDemo)
}

// devLog is for eyes, and quiet unless told otherwise.
func devLog(w io.Writer, c *Config) zerolog.Logger {
	level := zerolog.WarnLevel
	if _, given := c.origin["log-level"]; given {
		level = c.LogLevel
	}
	return newLog(zerolog.ConsoleWriter{Out: w, NoColor: !isTerminal(w), TimeFormat: "15:04:05.000"}, level)
}

type dev struct {
	c   Config
	out *lockedWriter
	log zerolog.Logger
}

func (d *dev) run(ctx context.Context, replicas int, withDemo bool) error {
	cluster, err := startCluster()
	if err != nil {
		return fmt.Errorf("embedded cluster: %w", err)
	}
	defer cluster.Close()
	store, err := startRedis()
	if err != nil {
		return fmt.Errorf("embedded Redis: %w", err)
	}
	defer store.Close()
	d.c.origin["redis"] = originEmbedded
	d.c.Upstream, d.c.Redis = cluster.ListenAddrs(), redisURL("redis://"+store.Addr()+"/0")

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel(nil)
	var started []*replica
	for i := range replicas {
		r, err := d.replica(i)
		if err != nil {
			return err
		}
		started = append(started, r)
		running.Go(func() {
			if err := r.run(ctx); err != nil {
				cancel(err)
			}
		})
	}
	for _, r := range started {
		select {
		case <-r.up:
		case <-ctx.Done():
			return causeOf(ctx)
		}
	}
	if withDemo {
		return d.demo(ctx, started)
	}
	d.welcome(started)
	<-ctx.Done()
	return causeOf(ctx)
}

// causeOf is the failure of a replica, or nil when ctx ended by a signal.
func causeOf(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// startCluster starts a Kafka without share groups, as a 3.x is.
func startCluster() (*kfake.Cluster, error) {
	versions := kversion.Stable()
	for _, key := range []int16{76, 77, 78, 79, 90, 91, 92} {
		versions.SetMaxKeyVersion(key, -1)
	}
	// Its answer to DescribeTopicPartitions has null where Kafka's own admin client wants a list; without it, as before
	// Kafka 3.7, that client asks for metadata.
	versions.SetMaxKeyVersion(int16(kmsg.DescribeTopicPartitions), -1)
	return kfake.NewCluster(kfake.NumBrokers(devBrokers), kfake.ClusterID("kshare-dev"), kfake.MaxVersions(versions),
		kfake.AllowAutoTopicCreation(), kfake.DefaultNumPartitions(4))
}

// startRedis starts a Redis whose clock runs: by itself miniredis expires keys only when told to.
func startRedis() (*miniredis.Miniredis, error) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	return m, m.Start()
}

// replica builds the i-th replica, replicaStep ports above the one before.
func (d *dev) replica(i int) (*replica, error) {
	c := d.c
	var err error
	if c.Listen, err = shiftPort("listen", c.Listen, i*replicaStep); err != nil {
		return nil, err
	}
	if c.HTTP, err = shiftPort("http", c.HTTP, i*replicaStep); err != nil {
		return nil, err
	}
	if c.Pprof != "" {
		if c.Pprof, err = shiftPort("pprof", c.Pprof, i*replicaStep); err != nil {
			return nil, err
		}
	}
	c.NodePorts += i * replicaStep
	if c.ListenTLS.SNIPort != 0 {
		c.ListenTLS.SNIPort += i * replicaStep
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	return newReplica(c, d.log.With().Int("replica", i+1).Logger(), d.out)
}

func shiftPort(key, address string, by int) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", &configError{key: key, problem: err.Error()}
	}
	n, err := strconv.Atoi(port)
	if err != nil || n+by > 65535 {
		return "", &configError{key: key, problem: fmt.Sprintf("port %s + %d is above 65535, give a lower port", port, by)}
	}
	return net.JoinHostPort(host, strconv.Itoa(n+by)), nil
}

func (d *dev) demo(ctx context.Context, started []*replica) error {
	o := demo.Options{GroupConfigs: demoGroupConfigs, Out: d.out, Color: isTerminal(d.out.w) && os.Getenv("NO_COLOR") == ""}
	for i, r := range started {
		o.Replicas = append(o.Replicas, demo.Replica{Name: strconv.Itoa(i + 1), Bootstrap: r.c.bootstrap()})
	}
	fmt.Fprintf(d.out, "\nA Kafka cluster of %d brokers without share groups, a Redis, and %d kshare in front, all in this process.\n\n", devBrokers, len(started))
	err := demo.Run(ctx, o)
	if cause := causeOf(ctx); cause != nil {
		return cause
	}
	if ctx.Err() != nil {
		return errors.New("demo: stopped before its end")
	}
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	fmt.Fprintln(d.out, "it adds up: nothing lost, nothing accepted twice, nothing came back after it was acknowledged")
	return nil
}

func (d *dev) welcome(started []*replica) {
	var bootstraps, endpoints []string
	for _, r := range started {
		bootstraps = append(bootstraps, r.c.bootstrap())
		endpoints = append(endpoints, "http://"+reachable(r.c.HTTP)+"/metrics")
	}
	list := strings.Join(bootstraps, ",")
	fmt.Fprintf(d.out, `
A Kafka cluster of %d brokers without share groups, a Redis, and %d kshare in front, all in this process.
Topics are created at their first use. Point any client at

  bootstrap.servers=%s

With the tools of Kafka 4.1 or newer, the consumer first, as a new share group begins at the end of its topics:

  kafka-console-share-consumer.sh --bootstrap-server %s --topic orders --group packers
  kafka-console-producer.sh       --bootstrap-server %s --topic orders

metrics: %s
Ctrl-C ends it; nothing is kept.
`, devBrokers, len(started), list, bootstraps[len(bootstraps)-1], bootstraps[0], strings.Join(endpoints, " "))
}

// lockedWriter lets replicas and the demo share standard output without mixing their lines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}
