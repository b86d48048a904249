package serve

import (
	"slices"
	"testing"

	"kshare/proxy/upstream"
)

func tpN(topic byte, partition int32) upstream.TP {
	return upstream.TP{ID: [16]byte{topic}, Partition: partition}
}

func TestSessionBodyRoundTrip(t *testing.T) {
	for _, ps := range []sessionParts{
		{},
		{{TP: tpN(1, 0)}},
		{{TP: tpN(1, 0), resolved: true}, {TP: tpN(2, 70000), owed: true}, {TP: tpN(1, -1), resolved: true, owed: true}},
	} {
		got, err := decodeSessionParts(ps.encode())
		if err != nil || !slices.Equal(got, ps) {
			t.Errorf("%v came back as %v, %v", ps, got, err)
		}
	}
}

func FuzzSessionBody(f *testing.F) {
	f.Add(sessionParts{{TP: tpN(1, 300), resolved: true}, {TP: tpN(2, 1), owed: true}}.encode())
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		ps, err := decodeSessionParts(b)
		if err != nil {
			return
		}
		again, err := decodeSessionParts(ps.encode())
		if err != nil || !slices.Equal(ps, again) {
			t.Errorf("%v came back as %v, %v", ps, again, err)
		}
	})
}

func TestUpdateAddsThenForgets(t *testing.T) {
	old := sessionParts{{TP: tpN(1, 0), resolved: true}, {TP: tpN(1, 1)}}
	add := sessionParts{{TP: tpN(1, 0), owed: true}, {TP: tpN(2, 0), owed: true}, {TP: tpN(3, 0), owed: true}}
	got := old.update(add, map[upstream.TP]bool{tpN(1, 1): true, tpN(3, 0): true, tpN(9, 9): true})
	want := sessionParts{{TP: tpN(1, 0), resolved: true}, {TP: tpN(2, 0), owed: true}}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if len(old) != 2 {
		t.Errorf("the old list changed: %v", old)
	}
}

func TestRotationByEpoch(t *testing.T) {
	ps := sessionParts{{TP: tpN(0, 0)}, {TP: tpN(0, 1)}, {TP: tpN(0, 2)}}
	for epoch, first := range map[int32]int32{-1: 0, 0: 0, 1: 1, 2: 2, 3: 0, 4: 1} {
		got := ps.rotated(epoch)
		if got[0].Partition != first || len(got) != 3 || got[2].Partition != (first+2)%3 {
			t.Errorf("epoch %d: %v", epoch, got)
		}
	}
}
