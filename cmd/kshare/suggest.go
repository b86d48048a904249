package main

import "strings"

// otherNames are what operators of Kafka and of other proxies write for our keys.
var otherNames = map[string]string{
	"bootstrap-servers": "upstream", "bootstrap-server": "upstream", "brokers": "upstream", "seeds": "upstream", "kafka": "upstream",
	"redis-url": "redis", "redis-addr": "redis", "advertised-listeners": "advertise", "listeners": "listen", "http-listen": "http", "metrics": "http",
	"verbose": "log-level",
}

// didYouMean ends an error about an unknown name with the known name that was probably meant, or with where to find all names.
func didYouMean(name string, known []string) string {
	if best := nearest(name, known); best != "" {
		return `, did you mean "` + best + `"?`
	}
	return ", `kshare help serve` lists all keys"
}

func didYouMeanFlag(name string, known []string) string {
	if best := nearest(name, known); best != "" {
		return ", did you mean --" + best + "?"
	}
	return ", `kshare help serve` lists all flags"
}

// nearest is the known name that is close enough to a mistyped one, or "".
func nearest(name string, known []string) string {
	plain := strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	best, bestDistance := "", min(max(2, len(name)/4), 6)+1
	for _, k := range known {
		flat := strings.ToLower(strings.ReplaceAll(k, "_", "-"))
		if flat == otherNames[plain] {
			return k
		}
		if d := distance(plain, flat); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

// distance counts the letters to insert, delete, replace or swap with their neighbour to get from a to b.
func distance(a, b string) int {
	const tooLong = 100 // a name this long is not a typing error
	if len(a) > tooLong || len(b) > tooLong {
		return tooLong
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(row[j-1]+1, last[j]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
