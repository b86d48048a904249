package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestCommandsThatOnlyPrint runs what needs no network, in this process.
func TestCommandsThatOnlyPrint(t *testing.T) {
	for _, c := range []struct {
		args           []string
		code           int
		stdout, stderr string // a part of each; "" means nothing at all
	}{
		{nil, exitUsage, "", "usage: kshare COMMAND"},
		{[]string{"help"}, exitOK, "kshare dev --demo", ""},
		{[]string{"--help"}, exitOK, "kshare dev --demo", ""},
		{[]string{"help", "dev"}, exitOK, "--replicas N", ""},
		{[]string{"serve", "-h"}, exitOK, "--broker-config NAME=VALUE", ""},
		{[]string{"help", "sevre"}, exitUsage, "", `did you mean "kshare serve"?`},
		{[]string{"version"}, exitOK, "kshare ", ""},
		{[]string{"version", "x"}, exitUsage, "", `unexpected argument "x"`},
		{[]string{"check", "--redis=redis://:s3cr3t@h:1"}, exitOK, "redis: redis://:xxxxx@h:1 # flag --redis\n", ""},
		{[]string{"check", "--broker-config=group.share.max.size=20"}, exitOK, "group.share.max.size: 20 # flag --broker-config\n", ""},
		{[]string{"check"}, exitOK, "group.share.record.lock.duration.ms: 30000 # default\n", ""},
	} {
		var stdout, stderr bytes.Buffer
		code := run(c.args, &stdout, &stderr)
		if code != c.code {
			t.Errorf("kshare %v exits with %d, want %d", c.args, code, c.code)
		}
		for _, out := range []struct{ text, want string }{{stdout.String(), c.stdout}, {stderr.String(), c.stderr}} {
			if !strings.Contains(out.text, out.want) || out.want == "" && out.text != "" {
				t.Errorf("kshare %v says %q, want %q", c.args, out.text, out.want)
			}
		}
	}
}

func TestOnlyLocalKnowsWhatOthersCannotReach(t *testing.T) {
	for host, want := range map[string]bool{"127.0.0.1": true, "127.0.0.9": true, "localhost": true, "::1": true, "0.0.0.0": false, "": false, "example.org": false} {
		if onlyLocal(host) != want {
			t.Errorf("onlyLocal(%q) is %v", host, !want)
		}
	}
}
