package proxy

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// filled puts one element into every array, pointer and string of a request.
func filled(req kmsg.Request) kmsg.Request {
	fill(reflect.ValueOf(req).Elem())
	return req
}

func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; name != "UnknownTags" && name != "Version" {
				fill(v.Field(i))
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.String:
		v.SetString("x")
	}
}

// decodedKeys are those whose requests are taken apart here.
func decodedKeys(t *table) (keys []int16) {
	for key, r := range t {
		if r.kind == handled || r.kind == served {
			keys = append(keys, int16(key))
		}
	}
	return keys
}

// lie puts the length n where a request has a length, or anything else, at offset at.
func lie(req kmsg.Request, body []byte, at, n int) []byte {
	out := slices.Clone(body[:at])
	if req.IsFlexible() {
		return append(binary.AppendUvarint(out, uint64(n)), body[at+1:]...)
	}
	return append(binary.BigEndian.AppendUint32(out, uint32(n)), body[min(at+4, len(body)):]...)
}

// TestLengthsThatLieTakeLittleMemory puts lengths of up to 2^31-1 into every place of every request that is decoded here:
// arrays, strings, arrays in arrays, tags. The worst that comes of it is as much as a request without lies may take.
func TestLengthsThatLieTakeLittleMemory(t *testing.T) {
	const (
		padding = 16 << 10 // zeros are empty elements of any kind
		worst   = 48       // times the frame; without the race detector it is half of that
	)
	table := newTable(realServe(t, startUpstream(t).ListenAddrs()).APIs())
	tried, highest, culprit := 0, 0.0, ""
	for _, key := range decodedKeys(table) {
		for version := range kmsgMax(key) + 1 {
			req := kmsg.RequestForKey(key)
			req.SetVersion(version)
			plain := append(filled(req).AppendTo(nil), make([]byte, padding)...)
			// A lie that is believed makes room for one behind it.
			for from, believed := 0, 1.0; ; {
				best, next := believed, 0
				var longest []byte
				for at := from; at < len(plain)-padding; at++ {
					for _, n := range []int{padding - 200, 1<<31 - 1} {
						body := lie(req, plain, at, n)
						tried++
						if ratio := float64(decodingTakes(key, version, body)) / float64(len(body)); ratio > best {
							best, next, longest = ratio, at+1, body
						}
					}
				}
				if best < believed*1.1 {
					break
				}
				plain, from, believed = longest, next, best
				if best > highest {
					highest, culprit = best, fmt.Sprintf("%s v%d", kmsg.NameForKey(key), version)
				}
			}
		}
	}
	t.Logf("%d lies; at most %.1f bytes are allocated for a byte of a frame (%s)", tried, highest, culprit)
	if highest > worst {
		t.Errorf("%s takes %.1f times its size, more than %d", culprit, highest, worst)
	}
	if tried < 1000 {
		t.Errorf("only %d lies", tried)
	}
}

// decodingTakes is how many bytes are allocated for decoding a body: the least of some tries, for others allocate as well.
func decodingTakes(key, version int16, body []byte) uint64 {
	least := uint64(math.MaxUint64)
	for range 3 {
		before := allocated()
		r := request{header: header{key: key, version: version}, body: body}
		_, _ = r.decode()
		if least = min(least, allocated()-before); least < uint64(len(body)) {
			break
		}
	}
	return least
}
