package statelog

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// asUser connects with a user of its own that has the given rules on top of those of [Rights].
func asUser(t *testing.T, srv *realServer, name string, rules ...string) redis.UniversalClient {
	t.Helper()
	command := []any{"ACL", "SETUSER", name, "on", ">s3cr3t"}
	for _, rule := range append(Rights("t"), rules...) {
		command = append(command, rule)
	}
	if err := connect(t, srv.at).Do(bg, command...).Err(); err != nil {
		t.Fatal(err)
	}
	return connect(t, name+":s3cr3t@"+srv.at)
}

// TestTheRightsAreEnoughAndEachIsNeeded: the other tests of this package run on a real Redis as a user with just these.
func TestTheRightsAreEnoughAndEachIsNeeded(t *testing.T) {
	srv := startReal(t)
	if err := CheckRights(bg, asUser(t, srv, "enough"), "t"); err != nil {
		t.Errorf("with all rights: %v", err)
	}
	if left := connect(t, srv.at).DBSize(bg).Val(); left != 0 {
		t.Errorf("the check leaves %d keys", left)
	}
	for _, command := range rightsCommands {
		client := asUser(t, srv, "without-"+command, "-"+command)
		err := CheckRights(bg, client, "t")
		switch command {
		case "ping", "info":
			warnings, err := CheckServer(bg, client)
			if command == "ping" && !refused(err) {
				t.Errorf("without ping: %v", err)
			}
			if command == "info" && (err != nil || !strings.Contains(strings.Join(warnings, ""), "eviction policy of Redis is not known")) {
				t.Errorf("without info: %v, %v", warnings, err)
			}
		default:
			if !errors.Is(err, ErrRights) || !strings.Contains(err.Error(), "'"+command+"'") {
				t.Errorf("without %s: %v", command, err)
			}
		}
	}
	for rule, want := range map[string]string{"resetkeys": "key", "resetchannels": "channel"} {
		if err := CheckRights(bg, asUser(t, srv, rule, rule), "t"); !errors.Is(err, ErrRights) || !strings.Contains(err.Error(), want) {
			t.Errorf("with %s: %v", rule, err)
		}
	}
	err := CheckRights(bg, asUser(t, srv, "two", "-scard", "-publish"), "t")
	if !errors.Is(err, ErrRights) || !strings.Contains(err.Error(), "'scard'") || !strings.Contains(err.Error(), "'publish'") {
		t.Errorf("without two commands: %v", err)
	}
	err = CheckRights(bg, asUser(t, srv, "nowhere", "resetkeys", "~t2:*"), "t")
	if !errors.Is(err, ErrRights) {
		t.Errorf("without its keys: %v", err)
	} else {
		_, list, _ := strings.Cut(err.Error(), ErrRights.Error()+": ")
		said := strings.Split(list, "; ")
		slices.Sort(said)
		if once := slices.Compact(slices.Clone(said)); len(once) < len(said) {
			t.Errorf("the same is said more than once: %v", err)
		}
	}
	if err := CheckRights(bg, asUser(t, srv, "elsewhere"), "other"); !errors.Is(err, ErrRights) {
		t.Errorf("with another prefix: %v", err)
	}
}

func TestCheckRightsOnAServerWithoutUsers(t *testing.T) {
	if err := CheckRights(bg, connect(t, startFake(t).addr()), "t"); err != nil {
		t.Error(err)
	}
	if err := CheckRights(bg, connect(t, freeAddr(t)), "t"); !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrRights) {
		t.Errorf("with nobody there: %v", err)
	}
}

// TestARenewedPasswordIsAnOutageUntilTheClientKnowsIt changes the user's password and cuts its connections, as operators do.
func TestARenewedPasswordIsAnOutageUntilTheClientKnowsIt(t *testing.T) {
	srv := startReal(t, append([]string{"--user", "kshare", "on", ">0ld"}, Rights("t")...)...)
	passwords := make(chan string, 1)
	passwords <- "0ld"
	client, err := Access{Credentials: func(context.Context) (string, string, error) {
		now := <-passwords
		passwords <- now
		return "kshare", now, nil
	}}.Connect("redis://" + srv.at + "?read_timeout=10s&dial_timeout=5s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	s := NewStore(client, Options{Prefix: "t", ClusterID: "c", Log: testLog(t), CatchUp: 100 * time.Millisecond, Timeout: 10 * time.Second})
	t.Cleanup(func() { s.Close(context.Background()) })
	run(t, s)
	l := NewLogs(s, "book", newBook).Get("g")
	mustCreate(t, l)
	add(t, l, "a")

	all := connect(t, srv.at)
	for _, command := range [][]any{{"ACL", "SETUSER", "kshare", "resetpass", ">n3w"}, {"CLIENT", "KILL", "USER", "kshare"}} {
		if err := all.Do(bg, command...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the refusal to be noticed", func() bool {
		v, err := s.roundTrip(bg, []any{"PING"})
		t.Log(v)
		t.Log(all.Do(bg, "CLIENT", "LIST").Val())
		t.Logf("%v %T %v", err, err, s.outage.cause())
		pause(3000 * time.Millisecond)
		return LoginRefused(s.Healthy())
	})
	if text := s.Healthy().Error(); strings.Contains(text, "0ld") || strings.Contains(text, "n3w") {
		t.Errorf("a password is shown: %s", text)
	}
	<-passwords
	passwords <- "n3w"
	eventually(t, "health with the new password", func() bool { return s.Healthy() == nil })
	if add(t, l, "b") != 1 {
		t.Error("not at its place")
	}
}

// TestARefusedConnectionIsNoAnswer: a log must not be taken for missing because the login, or the choice of the database, is refused.
func TestARefusedConnectionIsNoAnswer(t *testing.T) {
	srv := startReal(t)
	asUser(t, srv, "kshare") // may not SELECT
	l := NewLogs(newStore(t, srv.at), "book", newBook).Get("g")
	mustCreate(t, l)
	add(t, l, "a")
	for name, url := range map[string]string{
		"wrong password": "redis://kshare:wrong@" + srv.at, "unknown user": "redis://nobody:s3cr3t@" + srv.at, "database": "redis://kshare:s3cr3t@" + srv.at + "/1",
	} {
		t.Run(name, func(t *testing.T) {
			client, err := Connect(url + "?read_timeout=10s&dial_timeout=5s")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { client.Close() })
			s := NewStore(client, Options{Prefix: "t", ClusterID: "c", Log: testLog(t), Timeout: 300 * time.Millisecond})
			t.Cleanup(func() { s.Close(context.Background()) })
			denied := NewLogs(s, "book", newBook).Get("g")
			if err := denied.View(bg, 0, func(*book) {}); !errors.Is(err, ErrUnavailable) {
				t.Errorf("view: %v", err)
			}
			if _, err := denied.Submit([]byte("b")).Wait(bg); !errors.Is(err, ErrUnavailable) {
				t.Errorf("submit: %v", err)
			}
			if ok, err := denied.Create(bg, newBook()); ok || !errors.Is(err, ErrUnavailable) {
				t.Errorf("create: %v %v", ok, err)
			}
			eventually(t, "bad health", func() bool { return s.Healthy() != nil })
			if n := s.Stats().Commands; n > 1000 {
				t.Errorf("%d commands sent", n)
			}
			if err := CheckRights(bg, client, "t"); !errors.Is(err, ErrUnavailable) {
				t.Errorf("rights: %v", err)
			}
		})
	}
	if got := entries(t, l); len(got) != 1 {
		t.Errorf("book %q", got)
	}
}
