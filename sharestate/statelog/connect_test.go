package statelog

import (
	"errors"
	"strings"
	"testing"
)

func TestConnectTellsWhatIsWrongWithAURL(t *testing.T) {
	for url, want := range map[string]string{
		"redis://127.0.0.1:6379/0":               "",
		"rediss://user:pass@127.0.0.1:6380":      "",
		"redis://127.0.0.1:6379?read_timeout=3s": "",
		"redis+sentinel://h1,h2/master":          "not supported yet",
		"redis+cluster://h1,h2":                  "not supported yet",
		"http://127.0.0.1":                       "not a known scheme",
		"127.0.0.1:6379":                         "not a URL",
		"redis://127.0.0.1:6379?nonsense=1":      "nonsense",
		"redis://u:secret@127.0.0.1:no":          "not a URL",
	} {
		c, err := Connect(url)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", url, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", url, err, want)
		case err != nil && strings.Contains(err.Error(), "secret"):
			t.Errorf("%s: the error holds the password: %v", url, err)
		}
		if c != nil {
			c.Close()
		}
	}
}

func TestCheckServerRefusesEvictionAndWarnsOfLoss(t *testing.T) {
	for _, c := range []struct {
		name    string
		args    []string
		evicts  bool
		warning string // "" = none
	}{
		{"safe", nil, false, ""},
		{"allkeys", []string{"--maxmemory-policy", "allkeys-lru"}, true, ""},
		{"volatile", []string{"--maxmemory-policy", "volatile-lru"}, false, "volatile-lru"},
		{"no persistence", []string{"--appendonly", "no"}, false, "keeps nothing"},
		{"snapshots only", []string{"--appendonly", "no", "--save", "60 1000"}, false, "snapshots only"},
		{"no CONFIG", []string{"--appendonly", "no", "--rename-command", "CONFIG", ""}, false, "no append-only file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			warnings, err := CheckServer(bg, connect(t, startReal(t, c.args...).addr()))
			if errors.Is(err, ErrEvicts) != c.evicts || (err != nil) != c.evicts {
				t.Fatalf("error %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), "noeviction") {
				t.Fatalf("%v does not name the fix", err)
			}
			if all := strings.Join(warnings, "\n"); (all == "") != (c.warning == "") || !strings.Contains(all, c.warning) {
				t.Fatalf("warnings %q, want %q", warnings, c.warning)
			}
		})
	}
}

func TestCheckServerToleratesAServerThatTellsNothing(t *testing.T) {
	warnings, err := CheckServer(bg, connect(t, startFake(t).addr()))
	if err != nil || len(warnings) == 0 {
		t.Fatalf("%q %v", warnings, err)
	}
}

func TestCheckServerTellsAnUnreachableServerApart(t *testing.T) {
	if _, err := CheckServer(bg, connect(t, freeAddr(t))); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
}

func TestRefusedCommandIsRetriableAndHarmsNothingElse(t *testing.T) {
	srv := startReal(t)
	s := newStore(t, srv.addr())
	l := NewLogs(s, "book", newBook).Get("g")
	mustCreate(t, l)
	add(t, l, "a")
	set := func(memory string) {
		if err := s.client.ConfigSet(bg, "maxmemory", memory).Err(); err != nil {
			t.Fatal(err)
		}
	}
	set("1000000") // less than it has
	if _, err := l.Submit([]byte("b")).Wait(bg); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "OOM") {
		t.Fatalf("got %v", err)
	}
	if got := entries(t, l); len(got) != 1 {
		t.Fatalf("book %q", got)
	}
	set("0")
	if add(t, l, "c") != 1 {
		t.Fatal("the refused op is in the book")
	}
}
