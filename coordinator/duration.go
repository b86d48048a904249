package coordinator

import (
	"errors"
	"math"
	"math/big"
	"regexp"
	"strings"
)

var errDuration = errors.New("not an ISO-8601 duration like P1DT2H3M4.5S")

// Days, hours, minutes and seconds, each with a sign of its own, at least one of them, and one behind T
// if there is a T: what java.time.Duration reads.
var isoDuration = regexp.MustCompile(`^([+-]?)P(?:([+-]?[0-9]+)D)?(T(?:([+-]?[0-9]+)H)?(?:([+-]?[0-9]+)M)?(?:([+-]?[0-9]+)(?:[.,]([0-9]{0,9}))?S)?)?$`)

// parseDuration reads an ISO-8601 duration as whole milliseconds, rounded down.
func parseDuration(text string) (int64, error) {
	m := isoDuration.FindStringSubmatch(strings.ToUpper(text))
	if m == nil || m[3] == "T" || m[2] == "" && m[3] == "" {
		return 0, errDuration
	}
	nanos := new(big.Int)
	for _, part := range [...]struct {
		digits string
		unit   int64 // nanoseconds
	}{{m[2], 24 * 3600e9}, {m[4], 3600e9}, {m[5], 60e9}, {m[6], 1e9}} {
		if part.digits == "" {
			continue
		}
		v, ok := new(big.Int).SetString(part.digits, 10)
		if !ok {
			return 0, errDuration
		}
		nanos.Add(nanos, v.Mul(v, big.NewInt(part.unit)))
	}
	if m[7] != "" {
		fraction, _ := new(big.Int).SetString((m[7] + "000000000")[:9], 10)
		if strings.HasPrefix(m[6], "-") {
			fraction.Neg(fraction)
		}
		nanos.Add(nanos, fraction)
	}
	if m[1] == "-" {
		nanos.Neg(nanos)
	}
	ms := nanos.Div(nanos, big.NewInt(1e6)) // Euclidean: rounds down.
	if !ms.IsInt64() || ms.Int64() == math.MinInt64 {
		return 0, errDuration
	}
	return ms.Int64(), nil
}
