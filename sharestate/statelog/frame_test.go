package statelog

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
)

// The stored format: these bytes must never change.
func TestFrameFormatIsFrozen(t *testing.T) {
	got := appendFrame(nil, kindOps, appendOps(nil, [][]byte{[]byte("ab"), nil}), 1_700_000_000_123_456, token{0x0102030405060708, 9})
	want := "0a" + "02" + "675adccb" + "0202616200" + hex.EncodeToString([]byte("1700000000123456")) + "0102030405060708" + "0000000000000009"
	if hex.EncodeToString(got) != want {
		t.Fatalf("got  %x\nwant %s", got, want)
	}
	st := &state{m: newBook(), writers: map[uint64]*writer{}}
	if _, err := st.apply(frame{kind: kindOps, payload: appendOps(nil, [][]byte{[]byte("ab")}), time: 77, token: token{5, 6}}); err != nil {
		t.Fatal(err)
	}
	got = st.snapshot(3, st.token, token{5, 7})
	want = "2e" + "01" + "6180d9ae" + "01" + "03" + "00000000000000050000000000000006" + "4d" + "01" + "0000000000000005" + "06" + "4d" + "06" + "4d" + "01" + "0100" +
		"9a01" + "01" + "026162" + hex.EncodeToString([]byte("0000000000000077")) + "00000000000000050000000000000007"
	if hex.EncodeToString(got) != want {
		t.Fatalf("got  %x\nwant %s", got, want)
	}
}

func TestSnapshotRestoresToAnEqualState(t *testing.T) {
	st := &state{m: newBook(), writers: map[uint64]*writer{}}
	for c := uint64(1); c < 50; c++ {
		ops := [][]byte{[]byte("a"), []byte("b")}
		if c%3 == 0 {
			ops = nil
		}
		// Some writers' results, and then the writers themselves, go by age.
		at, writer := int64(c)*resultsKept/3, c%7
		if c > 40 {
			at, writer = at+writersKept-3*resultsKept, 100+c%2
		}
		if _, err := st.apply(frame{kind: kindOps, payload: appendOps(nil, ops), time: at, token: token{writer, c}}); err != nil {
			t.Fatal(err)
		}
		f, err := parseFrame(st.snapshot(1, st.token, token{1, 1000}))
		if err != nil {
			t.Fatal(err)
		}
		again, covers, err := restore(f, newBook(), 1)
		if err != nil || covers != st.token {
			t.Fatal(covers, err)
		}
		if differs(st, again) {
			t.Fatalf("frame %d: restored state differs", c)
		}
	}
	before := len(st.writers)
	content := st.appendContent(nil)
	st.dropExpired()
	if !bytes.Equal(content, st.appendContent(nil)) {
		t.Fatal("dropping what has expired changed the state")
	}
	if len(st.writers) >= before {
		t.Fatal("no writer has expired: the test has tested nothing")
	}
}

// A copy that still holds an expired writer and one that was rebuilt without it must judge its frames alike.
func TestExpiredWriterIsForgottenByEveryCopyAtTheSamePlace(t *testing.T) {
	st := &state{m: newBook(), writers: map[uint64]*writer{}}
	ops := appendOps(nil, [][]byte{[]byte("a")})
	step := func(s *state, at int64, tok token) bool {
		out, err := s.apply(frame{kind: kindOps, payload: ops, time: at, token: tok})
		if err != nil {
			t.Fatal(err)
		}
		return out.void
	}
	step(st, 1, token{1, 10})
	for _, at := range []int64{writersKept, writersKept + 1, writersKept + 2} {
		step(st, at, token{2, uint64(at)})
		f, err := parseFrame(st.snapshot(1, st.token, token{9, 9}))
		if err != nil {
			t.Fatal(err)
		}
		rebuilt, _, err := restore(f, newBook(), 1)
		if err != nil {
			t.Fatal(err)
		}
		kept := *st // the old copy's own judgement, on a copy of the writers
		kept.m, kept.writers = newBook(), map[uint64]*writer{}
		for n, w := range st.writers {
			c := *w
			kept.writers[n] = &c
		}
		if a, b := step(&kept, at, token{1, 10}), step(rebuilt, at, token{1, 10}); a != b || a != (at <= writersKept+1) {
			t.Fatalf("at %d: void on the one %v, on the other %v", at-writersKept, a, b)
		}
	}
}

func TestTimeNeverFalls(t *testing.T) {
	st := &state{m: newBook(), writers: map[uint64]*writer{}}
	for i, at := range []int64{100, 50, 120, 1} { // the book itself refuses a time that falls
		f := frame{kind: kindOps, payload: appendOps(nil, [][]byte{[]byte("a")}), time: at, token: token{1, uint64(i + 1)}}
		if _, err := st.apply(f); err != nil {
			t.Fatal(err)
		}
	}
	if st.time != 120 {
		t.Fatalf("time %d", st.time)
	}
}

func TestEscapeKeepsPartsApart(t *testing.T) {
	for part, want := range map[string]string{
		"plain-Name_1.x": "plain-Name_1.x", "a/b": "a%2Fb", "{x}": "%7Bx%7D", "50%": "50%25", "a:b\n": "a%3Ab%0A", "é": "é",
	} {
		if got := Escape(part); got != want {
			t.Errorf("%q: %q, want %q", part, got, want)
		}
	}
}

func FuzzParseFrames(f *testing.F) {
	f.Add(appendFrame(nil, kindOps, appendOps(nil, [][]byte{[]byte("ab"), nil}), 123, token{1, 2}))
	f.Add(newBookState().snapshot(1, token{}, token{3, 4}))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Add([]byte(strings.Repeat("0", 60)))
	f.Fuzz(func(t *testing.T, b []byte) {
		frames, err := parseFrames(b)
		if err != nil {
			if frames != nil {
				t.Fatal("a part of a malformed reply was returned")
			}
			return
		}
		size := 0
		var again []byte
		for _, fr := range frames {
			size += fr.size
			again = appendFrame(again, fr.kind, fr.payload, fr.time, fr.token)
			_, _ = parseOps(fr.payload)
			_, _, _ = restore(fr, newBook(), 1)
		}
		if size != len(b) {
			t.Fatalf("%d of %d bytes", size, len(b))
		}
		if second, err := parseFrames(again); err != nil || len(second) != len(frames) {
			t.Fatalf("encoded again: %v", err)
		}
	})
}

// FuzzRestore gives snapshots a right checksum, so that what is behind it is reached.
func FuzzRestore(f *testing.F) {
	st := newBookState()
	_, _ = st.apply(frame{kind: kindOps, payload: appendOps(nil, [][]byte{[]byte("ab")}), time: 77, token: token{5, 6}})
	fr, _ := parseFrame(st.snapshot(1, st.token, token{3, 4}))
	f.Add(fr.payload)
	f.Fuzz(func(t *testing.T, payload []byte) {
		s, _, err := restore(frame{kind: kindSnapshot, payload: payload, size: len(payload)}, newBook(), 1)
		if err == nil {
			_ = s.appendContent(nil)
		}
	})
}

func newBookState() *state { return &state{m: newBook(), writers: map[uint64]*writer{}} }
