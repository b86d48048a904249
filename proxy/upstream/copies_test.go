package upstream

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// stored gives the batches that the records become in a new topic.
func (f *fixture) stored(name string, codec kgo.CompressionCodec, records ...*kgo.Record) []Batch {
	f.Helper()
	topic := f.topic(name, 1)
	client, err := kgo.NewClient(kgo.SeedBrokers(f.seeds...), kgo.DisableClientMetrics(), kgo.DefaultProduceTopic(topic.Name),
		kgo.ProducerBatchCompression(codec), kgo.ProducerBatchMaxBytes(90<<20), kgo.ManualFlushing())
	if err != nil {
		f.Fatal(err)
	}
	defer client.Close()
	for _, r := range records {
		client.Produce(f.ctx, r, func(_ *kgo.Record, err error) {
			if err != nil {
				f.Error(err)
			}
		})
	}
	if err := client.Flush(f.ctx); err != nil {
		f.Fatal(err)
	}
	batches := f.read(f.open(TP{ID: topic.ID}, ReadUncommitted), 0, 1<<20).Batches // the client may cut them while it gets to know the topic
	checkContiguous(f, batches, 0)
	if last := batches[len(batches)-1].Last; last != int64(len(records))-1 {
		f.Fatalf("the last offset is %d", last)
	}
	return batches
}

var codecs = map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}

func TestCopiesAreTheRecordsKeysAndValues(t *testing.T) {
	f := newFixture(t, newCluster(t))
	for name, codec := range codecs {
		records := []*kgo.Record{
			{Key: []byte("k0"), Value: []byte("v0"), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("x")}}},
			{},
			{Key: []byte{}, Value: []byte{}},
			{Key: []byte("k3"), Value: bytes.Repeat([]byte("long "), 10_000)},
		}
		for _, b := range f.stored(name, codec, records...) {
			c, err := f.c.Copies(b)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			var order []int64 // there and back
			for o := b.Base; o <= b.Last; o++ {
				order = append([]int64{o}, append(order, o)...)
			}
			for _, o := range order {
				key, value, err := c.At(o)
				if r := records[o]; err != nil || !bytes.Equal(key, r.Key) || !bytes.Equal(value, r.Value) || (key == nil) != (r.Key == nil) || (value == nil) != (r.Value == nil) {
					t.Errorf("%s: record %d is %q and %d bytes, %v", name, o, key, len(value), err)
				}
			}
			if !c.Covers(b.Base) || !c.Covers(b.Last) || c.Covers(b.Last+1) || c.Covers(b.Base-1) {
				t.Errorf("%s: covers other offsets than %d to %d", name, b.Base, b.Last)
			}
		}
	}
}

func TestCopiesOfABatchThatUnpacksTooLargeAreRefused(t *testing.T) {
	f := newFixture(t, newCluster(t))
	for name, codec := range codecs {
		if name == "none" || name == "snappy" { // snappy packs by a twentieth at best
			continue
		}
		c, err := f.c.Copies(f.stored(name, codec, &kgo.Record{Value: make([]byte, MostUnpacked)})[0])
		if !errors.Is(err, ErrTooLarge) || !c.Covers(0) {
			t.Errorf("%s: %v, covers %v", name, err, c.Covers(0))
		}
		if key, value, err := c.At(0); key != nil || value != nil || err != nil {
			t.Errorf("%s: something of it is there", name)
		}
	}
}

func TestCopiesOfACorruptBatchAreRefused(t *testing.T) {
	f := newFixture(t, newCluster(t))
	for name, codec := range codecs {
		b := f.stored(name, codec, &kgo.Record{Value: bytes.Repeat([]byte("0123456789"), 100)})[0]
		for _, at := range []int{headerBytes, headerBytes + 3, len(b.Bytes) - 1} {
			broken := b
			broken.Bytes = bytes.Clone(b.Bytes)
			broken.Bytes[at] ^= 0xff
			if c, err := f.c.Copies(broken); !errors.Is(err, ErrCorrupt) || !c.Covers(0) {
				t.Errorf("%s, byte %d: %v, covers %v", name, at, err, c.Covers(0))
			}
		}
	}
}

func TestCopiesOfMalformedRecordsAreRefusedThoughTheChecksumIsRight(t *testing.T) {
	f := newFixture(t, newCluster(t))
	whole := encodeBatch([]Out{{Key: []byte("a"), Value: []byte("b")}, {Key: []byte("c"), Value: []byte("d")}}, time.Now())
	size := (len(whole) - headerBytes) / 2
	for at, wrong := range map[int]byte{
		0:        0x7e, // a record longer than the batch
		size:     0x01, // of negative length
		size + 3: 0x00, // at the offset of the one before
		size + 4: 0x7e, // with a key longer than itself
	} {
		b := Batch{Base: 10, Last: 11, Bytes: bytes.Clone(whole)}
		b.Bytes[headerBytes+at] = wrong
		binary.BigEndian.PutUint32(b.Bytes[atChecksum:], crc32.Checksum(b.Bytes[atAttributes:], castagnoli))
		c, err := f.c.Copies(b)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.At(11); !errors.Is(err, ErrCorrupt) {
			t.Errorf("byte %d: %v", at, err)
		}
		if key, value, err := c.At(10); key != nil || value != nil || err != nil {
			t.Errorf("byte %d: %q, %q, %v afterwards", at, key, value, err)
		}
	}
}
