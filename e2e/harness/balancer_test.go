//go:build e2e

package harness

import (
	"bytes"
	"testing"
)

// An address that arrives in two pieces must not slip through.
func TestScannerFindsNeedleAcrossChunks(t *testing.T) {
	stream := []byte("....." + UpstreamHost + ".....")
	for cut := range len(stream) + 1 {
		var hits int
		s := scanner{needles: [][]byte{[]byte(UpstreamHost)}, hit: func([]byte) { hits++ }}
		s.Write(stream[:cut])
		s.Write(stream[cut:])
		if hits == 0 {
			t.Errorf("cut at %d: not found", cut)
		}
	}
}

func TestScannerFindsNeedleByteByByte(t *testing.T) {
	var hits [][]byte
	s := scanner{needles: [][]byte{[]byte(UpstreamHost)}, hit: func(around []byte) { hits = append(hits, around) }}
	for _, b := range []byte("x" + UpstreamHost + "x") {
		s.Write([]byte{b})
	}
	if len(hits) == 0 || !bytes.Contains(hits[0], []byte(UpstreamHost)) {
		t.Errorf("hits %q", hits)
	}
}

func TestScannerIgnoresOtherAddresses(t *testing.T) {
	s := scanner{needles: [][]byte{[]byte(UpstreamHost)}, hit: func(around []byte) { t.Errorf("hit %q", around) }}
	s.Write([]byte("127.0.0.1 127.0.7"))
	s.Write([]byte("7.2 127.0.0.77"))
}
