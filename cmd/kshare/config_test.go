package main

import (
	"errors"
	"flag"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// from is the input of a load: flags, environment, and a file kshare.yaml when text is not empty.
func from(args, environ []string, text string) inputs {
	if text != "" {
		args = append([]string{"--config", "kshare.yaml"}, args...)
	}
	return inputs{args: args, environ: environ, readFile: func(name string) ([]byte, error) {
		if name != "kshare.yaml" {
			return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOENT}
		}
		return []byte(text), nil
	}}
}

func TestFlagsWinOverEnvironmentOverFileOverDefaults(t *testing.T) {
	flags := []string{"--listen", "127.0.0.1:1"}
	env := []string{"KSHARE_LISTEN=127.0.0.1:2", "PATH=/bin"}
	file := "listen: 127.0.0.1:3\n"
	for _, c := range []struct {
		name string
		in   inputs
		want string
	}{
		{"default", from(nil, nil, ""), "127.0.0.1:19092"},
		{"file", from(nil, nil, file), "127.0.0.1:3"},
		{"environment over file", from(nil, env, file), "127.0.0.1:2"},
		{"flag over file", from(flags, nil, file), "127.0.0.1:1"},
		{"flag over environment", from(flags, env, ""), "127.0.0.1:1"},
		{"flag over all", from(flags, env, file), "127.0.0.1:1"},
		{"last flag", from([]string{"--listen=127.0.0.1:8", "--listen=127.0.0.1:9"}, nil, ""), "127.0.0.1:9"},
	} {
		got, err := load(c.in, nil)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if got.Listen != c.want {
			t.Errorf("%s: listen is %s, want %s", c.name, got.Listen, c.want)
		}
	}
}

// TestEveryKeyHasTheSameMeaningInAllSources sets each key once in each source.
func TestEveryKeyHasTheSameMeaningInAllSources(t *testing.T) {
	values := map[string]string{
		"upstream": "a:1,b:2", "redis": "rediss://u:p@h:1/3", "redis-prefix": "other", "redis-lease": "9s", "listen": "127.0.0.9:7",
		"advertise": "example.org", "node-ports": "4000", "http": "127.0.0.9:8", "cache-bytes": "30MiB", "drain": "7s", "max-frame": "1MiB",
		"listen-tls-cert": "/etc/tls.crt", "listen-tls-key": "/etc/tls.key", "listen-tls-client-ca": "/etc/clients.pem", "sni-suffix": "kafka.example.org", "sni-port": "443",
		"log-level": "error", "upstream-tls": "true", "upstream-tls-ca": "/etc/ca.pem", "broker-config": "group.share.delivery.count.limit=7",
		"max-connections": "77", "max-connections-per-address": "7", "max-in-flight": "5", "max-waiting-fetches": "9",
		"auth-timeout": "11s", "frame-timeout": "12s", "stall-timeout": "13m0s",
	}
	tls := []string{"--listen-tls-cert=/etc/tls.crt", "--listen-tls-key=/etc/tls.key"}
	needs := map[string][]string{"upstream-tls-ca": {"--upstream-tls=true"},
		"listen-tls-cert": tls[1:], "listen-tls-key": tls[:1], "listen-tls-client-ca": tls, "sni-suffix": tls, "sni-port": append(tls, "--sni-suffix=example.org")}
	for key, needed := range loginNeeds {
		values[key], needs[key] = loginValues[key], needed
	}
	values["pprof"] = "127.0.0.9:6060"
	for key, needed := range redisNeeds {
		values[key], needs[key] = redisValues[key], needed
	}
	for _, s := range settings {
		value, ok := values[s.key]
		if !ok {
			t.Errorf("no value for %s in this test", s.key)
			continue
		}
		text := s.key + ": " + value
		if s.key == "broker-config" {
			text = "broker-config: {group.share.delivery.count.limit: 7}"
		}
		var got []string
		for source, in := range map[string]inputs{
			"flag":        from(append([]string{"--" + s.key, value}, needs[s.key]...), nil, ""),
			"environment": from(needs[s.key], []string{s.env() + "=" + value}, ""), "file": from(needs[s.key], nil, text),
		} {
			if s.noFlag && source == "flag" {
				continue // refused, see TestSecretsAreNoFlags
			}
			c, err := load(in, nil)
			if err != nil {
				t.Errorf("%s from %s: %v", s.key, source, err)
				continue
			}
			if c.origin[s.key] == "" {
				t.Errorf("%s from %s leaves no origin", s.key, source)
			}
			got = append(got, s.get(&c))
		}
		d := defaults()
		if slices.Sort(got); len(slices.Compact(got)) != 1 || got[0] == s.get(&d) {
			t.Errorf("%s: the sources lead to %q, the default is %q", s.key, got, s.get(&d))
		}
	}
}

func TestSectionsAreKeysWithADash(t *testing.T) {
	c, err := load(from(nil, nil, "cache: {bytes: 20MiB}\nnode:\n  ports: 21000\nupstream: [a:1, b:2]\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.CacheBytes != 20<<20 || c.NodePorts != 21000 || !slices.Equal(c.Upstream, []string{"a:1", "b:2"}) {
		t.Errorf("got %d, %d, %v", c.CacheBytes, c.NodePorts, c.Upstream)
	}
}

func TestBrokerConfigsOfAllSourcesAreJoinedByName(t *testing.T) {
	c, err := load(from(
		[]string{"--broker-config", "group.share.delivery.count.limit=7", "--broker-config=group.share.max.size=20"},
		[]string{"KSHARE_BROKER_CONFIG=group.share.max.size=10,group.share.heartbeat.interval.ms=6000"},
		"broker-config:\n  group.share.heartbeat.interval.ms: 7000\n  group.share.max.share.sessions: 500\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"group.share.delivery.count.limit": "7", "group.share.max.size": "20",
		"group.share.heartbeat.interval.ms": "6000", "group.share.max.share.sessions": "500",
	}
	if diff := cmp.Diff(want, c.BrokerConfig); diff != "" {
		t.Error(diff)
	}
}

// TestMistakesNameTheKeyAndTheFix goes through what operators get wrong.
func TestMistakesNameTheKeyAndTheFix(t *testing.T) {
	for _, c := range []struct {
		name string
		in   inputs
		want []string // parts of the message
	}{
		{"unknown flag", from([]string{"--node-port=1"}, nil, ""), []string{"--node-port", "did you mean --node-ports?"}},
		{"flag of Kafka's tools", from([]string{"--bootstrap-servers=a:1"}, nil, ""), []string{"--bootstrap-servers", "did you mean --upstream?"}},
		{"flag like no other", from([]string{"--frobnicate"}, nil, ""), []string{"--frobnicate", "kshare help serve"}},
		{"flag without a value", from([]string{"--listen"}, nil, ""), []string{"--listen needs a value"}},
		{"argument", from([]string{"kshare.yaml"}, nil, ""), []string{`unexpected argument "kshare.yaml"`}},
		{"unknown variable", from(nil, []string{"KSHARE_NODEPORTS=1"}, ""), []string{"KSHARE_NODEPORTS", `did you mean "KSHARE_NODE_PORTS"?`}},
		{"unknown key", from(nil, nil, "listen: a:1\nhtpp: b:2\n"), []string{"htpp: unknown key", `did you mean "http"?`, "kshare.yaml:2"}},
		{"underscore", from(nil, nil, "node_ports: 1\n"), []string{"node_ports: unknown key", `did you mean "node-ports"?`}},
		{"unknown key in a section", from(nil, nil, "cache: {byte: 1MiB}\n"), []string{"cache-byte: unknown key", `did you mean "cache-bytes"?`}},
		{"section that is none", from(nil, nil, "tls: {cert: x}\n"), []string{"tls: unknown key"}},
		{"key twice", from(nil, nil, "cache-bytes: 1MiB\ncache: {bytes: 2MiB}\n"), []string{"cache-bytes: given twice"}},
		{"key without value", from(nil, nil, "listen:\n"), []string{"listen: has no plain value"}},
		{"empty value", from(nil, []string{"KSHARE_ADVERTISE="}, ""), []string{"advertise: has no value", "KSHARE_ADVERTISE"}},
		{"list for a value", from(nil, nil, "listen: [a:1]\n"), []string{"listen: has no plain value"}},
		{"file is a list", from(nil, nil, "- a\n"), []string{"must be a mapping"}},
		{"broken file", from(nil, nil, "a: [\n"), []string{"config: not valid YAML"}},
		{"two documents", from(nil, nil, "listen: a:1\n---\nlisten: b:1\n"), []string{"more than one YAML document"}},
		{"no such file", from([]string{"--config=nowhere.yaml"}, nil, ""), []string{"config: cannot read the file", "nowhere.yaml", "no such file"}},
		{"seed with a scheme", from([]string{"--upstream=kafka://a:1"}, nil, ""), []string{"upstream:", "without a scheme"}},
		{"seed without a port", from([]string{"--upstream=a:1,b"}, nil, ""), []string{"upstream:", `"b" is not host:port`}},
		{"seed with port 0", from([]string{"--upstream=a:0"}, nil, ""), []string{"upstream:", "1 to 65535"}},
		{"no UTF-8", from([]string{"--listen=kafk\xe1:9092"}, nil, ""), []string{"listen:", "no text"}},
		{"control character", from(nil, []string{"KSHARE_ADVERTISE=kshare\x00"}, ""), []string{"advertise:", "no text"}},
		{"listen without a port", from([]string{"--listen=localhost"}, nil, ""), []string{"listen:", "host:port"}},
		{"advertise with a port", from([]string{"--advertise=a:1"}, nil, ""), []string{"advertise:", "without a port"}},
		{"port too high", from(nil, nil, "node-ports: 70000"), []string{"node-ports:", "1 to 65535"}},
		{"http on listen", from([]string{"--http=127.0.0.1:19092"}, nil, ""), []string{"http:", "same address as listen"}},
		{"pprof for all", from([]string{"--pprof=:6060"}, nil, ""), []string{"pprof:", "other machines", "127.0.0.1:6060"}},
		{"pprof for some", from([]string{"--pprof=10.0.0.1:6060"}, nil, ""), []string{"pprof:", "other machines", "127.0.0.1:6060"}},
		{"pprof of a name", from([]string{"--pprof=kshare.example.org:6060"}, nil, ""), []string{"pprof:", "other machines"}},
		{"pprof on http", from([]string{"--pprof=127.0.0.1:19080"}, nil, ""), []string{"pprof:", "same address as http or listen"}},
		{"size", from([]string{"--cache-bytes=lots"}, nil, ""), []string{"cache-bytes:", "256MiB"}},
		{"duration", from([]string{"--drain=10"}, nil, ""), []string{"drain:", "10s"}},
		{"certificate without key", from([]string{"--listen-tls-cert=a"}, nil, ""), []string{"listen-tls-cert:", "listen-tls-key", "flag --listen-tls-cert"}},
		{"key without certificate", from(nil, nil, "listen-tls: {key: a}"), []string{"listen-tls-key:", "listen-tls-cert"}},
		{"authority without certificate", from([]string{"--listen-tls-client-ca=a"}, nil, ""), []string{"listen-tls-client-ca:", "listen-tls-cert", "flag --listen-tls-client-ca"}},
		{"SNI without TLS", from([]string{"--sni-suffix=example.org"}, nil, ""), []string{"sni-suffix:", "listen-tls-cert"}},
		{"port without SNI", from([]string{"--sni-port=443"}, nil, ""), []string{"sni-port:", "sni-suffix"}},
		{"node ports with SNI", from([]string{"--sni-suffix=example.org", "--listen-tls-cert=a", "--listen-tls-key=b"}, []string{"KSHARE_NODE_PORTS=19100"}, ""),
			[]string{"node-ports:", "sni-suffix", "KSHARE_NODE_PORTS"}},
		{"SNI with a star", from([]string{"--sni-suffix=*.example.org", "--listen-tls-cert=a", "--listen-tls-key=b"}, nil, ""), []string{"sni-suffix:", "not a domain"}},
		{"SNI with a free port", from([]string{"--sni-suffix=example.org", "--listen-tls-cert=a", "--listen-tls-key=b", "--listen=127.0.0.1:0"}, nil, ""), []string{"sni-port:"}},
		{"level", from([]string{"--log-level=loud"}, nil, ""), []string{"log-level:", "debug, info, warn or error"}},
		{"limit", from(nil, nil, "max-connections: 0"), []string{"max-connections:", "1 to 1000000"}},
		{"patience", from([]string{"--auth-timeout=5ms"}, nil, ""), []string{"auth-timeout:", "1s to 1h"}},
		{"Sentinel", from([]string{"--redis=redis+sentinel://a,b/m"}, nil, ""), []string{"redis:", "not supported yet"}},
		{"Redis without a scheme", from([]string{"--redis=localhost:6379"}, nil, ""), []string{"redis:", "redis://host:port"}},
		{"prefix", from([]string{"--redis-prefix={a}"}, nil, ""), []string{"redis-prefix:", "braces"}},
		{"broker setting without value", from([]string{"--broker-config=group.share.max.size"}, nil, ""), []string{"broker-config:", "NAME=VALUE"}},
		{"unknown broker setting", from([]string{"--broker-config=group.share.delivery.limit=3"}, nil, ""), []string{"broker-config:", "group.share.delivery.limit", "group.share.delivery.count.limit"}},
		{"broker setting out of bounds", from([]string{"--broker-config=group.share.max.size=100000"}, nil, ""), []string{"broker-config:", "group.share.max.size"}},
		{"broker setting in the file out of bounds", from(nil, nil, "broker-config:\n  group.share.max.size: 100000\n"), []string{"group.share.max.size", "kshare.yaml:2"}},
		{"default outside its pair", from([]string{"--broker-config=group.share.record.lock.duration.ms=70000"}, nil, ""),
			[]string{"broker-config:", "group.share.record.lock.duration.ms", "group.share.max.record.lock.duration.ms"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := mistake(t, c.in, c.want)
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
		})
	}
}

// TestVariablesOfKubernetesServicesAreNotOurs: a service named kshare puts these into each pod of its namespace.
func TestVariablesOfKubernetesServicesAreNotOurs(t *testing.T) {
	_, err := load(from(nil, []string{
		"KSHARE_SERVICE_HOST=10.0.0.1", "KSHARE_SERVICE_PORT=19092", "KSHARE_SERVICE_PORT_KAFKA=19092", "KSHARE_PORT=tcp://10.0.0.1:19092",
		"KSHARE_PORT_19092_TCP=tcp://10.0.0.1:19092", "KSHARE_PORT_19092_TCP_PROTO=tcp", "KSHARE_PORT_19092_TCP_PORT=19092",
		"KSHARE_PORT_19092_TCP_ADDR=10.0.0.1", "KSHARE_HEADLESS_SERVICE_HOST=10.0.0.2", "KSHARE_HEADLESS_PORT=tcp://10.0.0.2:1",
	}, ""), nil)
	if err != nil {
		t.Error(err)
	}
	if _, err := load(from(nil, []string{"KSHARE_NODE_PORT=19100"}, ""), nil); err == nil {
		t.Error("a mistyped variable that ends in PORT is accepted")
	}
}

func TestHelpIsNotAMistake(t *testing.T) {
	if _, err := load(from([]string{"--help"}, nil, ""), nil); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("got %v", err)
	}
	for _, c := range commands() {
		if text := usage(c.name); !strings.Contains(text, c.summary) || (c.keys && !strings.Contains(text, "--node-ports")) {
			t.Errorf("the help of %s says %q", c.name, text)
		}
	}
}

// TestNoPasswordIsEverShown looks at all that a configuration with a secret leads to.
func TestNoPasswordIsEverShown(t *testing.T) {
	const secret = "s3cr3t"
	for _, url := range []string{
		"redis://user:s3cr3t@127.0.0.1:6379/1", "rediss://:s3cr3t@h:1", // good
		"redis://user:s3cr3t/x@h:1", "redis://user:x#s3cr3t@h:1", "redis://user:x?s3cr3t@h:1", "redis://u:%s3cr3t@h:1", "http://u:s3cr3t@h:1", "redis://u:s3cr3t@", "redis+sentinel://u:s3cr3t@a,b/m", "s3cr3t", "redis://u:s3cr3t@h:1/x",
	} {
		for _, in := range []inputs{
			from([]string{"--redis", url}, nil, ""), from(nil, []string{"KSHARE_REDIS=" + url}, ""), from(nil, nil, "redis: '"+url+"'"),
			from(nil, nil, "redis: "+url+"\nredis-lease: x"),
		} {
			c, err := load(in, nil)
			shown := ""
			if err != nil {
				shown = err.Error()
			} else if text, err := effectiveYAML(&c); err == nil {
				shown = string(text)
			}
			if shown == "" || strings.Contains(shown, secret) {
				t.Errorf("%s leads to %q", url, shown)
			}
		}
	}
}

// TestCheckPrintsAFileThatMeansTheSame feeds what check prints back in.
func TestCheckPrintsAFileThatMeansTheSame(t *testing.T) {
	for _, args := range [][]string{
		nil,
		{"--upstream=a:1,b:2", "--listen=:7", "--http=0.0.0.0:8", "--advertise=example.org", "--cache-bytes=150000000", "--drain=1500ms", "--log-level=debug",
			"--broker-config=group.share.delivery.count.limit=7", "--redis=rediss://host:1/3", "--max-frame=123456"},
	} {
		first, err := load(from(args, nil, ""), nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := effectiveYAML(&first)
		if err != nil {
			t.Fatal(err)
		}
		second, err := load(from(nil, nil, string(text)), nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		again, err := effectiveYAML(&second)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(withoutComments(string(text)), withoutComments(string(again))); diff != "" {
			t.Error(diff)
		}
	}
}

func withoutComments(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		value, _, _ := strings.Cut(line, " #")
		b.WriteString(strings.TrimSpace(value) + "\n")
	}
	return b.String()
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"1": 1, "256MiB": 256 << 20, "2 GiB": 2 << 30, "5KB": 5000, "7B": 7, "0": 0} {
		if got, ok := parseSize(text); !ok || got != want {
			t.Errorf("%q is %d %v, want %d", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "1.5GiB", "1TB", "9999999999GiB", "1e3"} {
		if got, ok := parseSize(text); ok {
			t.Errorf("%q is taken for %d", text, got)
		}
	}
}

func TestNearestFindsTypingErrorsOnly(t *testing.T) {
	known := settingKeys()
	for name, want := range map[string]string{
		"upstraem": "upstream", "redis_prefix": "redis-prefix", "nodeports": "node-ports", "loglevel": "log-level", "brokers": "upstream",
		"completely-different": "", strings.Repeat("x", 5000): "",
	} {
		if got := nearest(name, known); got != want {
			t.Errorf("nearest to %.30q is %q, want %q", name, got, want)
		}
	}
}

func TestDefaultsAreValid(t *testing.T) {
	c, err := load(from(nil, nil, ""), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Drain != 20*time.Second || len(slices.Collect(maps.Keys(c.origin))) != 0 {
		t.Errorf("got %+v", c)
	}
}

// FuzzLoad: whatever stands in flags, environment and file, the loader ends with a configuration that passes its own check or with one
// line of error, and with the secret in neither.
func FuzzLoad(f *testing.F) {
	f.Add("--listen=127.0.0.1:1", "LISTEN=127.0.0.1:2", "listen: 127.0.0.1:3")
	f.Add("--broker-config=group.share.max.size=5", "BROKER_CONFIG=a=b,c", "broker-config: {group.share.max.size: 10}")
	f.Add("--redis=redis://u:p@h:1/2", "REDIS=redis://h", "cache: {bytes: 1MiB}\nupstream: [a:1, b:2]")
	f.Add("-listen=12\xf3|\x97v\xb77.0.0.1:1", "LISTEN=T127.0.0.1:2", "listen: 127.0.0.1:3")
	f.Add("--config=kshare.yaml", "NODE_PORTS=1", "a: &a [*a, *a]\n<<: *a")
	f.Fuzz(func(t *testing.T, flag, variable, text string) {
		c, err := load(from([]string{flag}, []string{"KSHARE_" + variable}, text+"\n"), nil)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\r\n") {
				t.Errorf("more than one line: %q", err)
			}
			return
		}
		out, err := effectiveYAML(&c)
		if err != nil {
			t.Fatal(err)
		}
		if !c.hasSecret() { // no secret, so it must read back
			if _, err := load(from(nil, nil, string(out)), nil); err != nil {
				t.Errorf("%v in\n%s", err, out)
			}
		}
	})
}

// mistake loads what an operator got wrong, and returns the error, which must have all parts of the message that are wanted.
func mistake(t *testing.T, in inputs, want []string) error {
	t.Helper()
	_, err := load(in, nil)
	if !asConfigError(err) {
		t.Fatalf("got %v, want a mistake of the operator", err)
	}
	for _, part := range want {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	return err
}
