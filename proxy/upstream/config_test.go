package upstream

import (
	"strings"
	"testing"
	"time"
)

func TestValidateNamesTheKey(t *testing.T) {
	good := Config{Seeds: []string{"127.0.0.1:9092", "[::1]:9092"}}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for key, spoil := range map[string]func(*Config){
		"seeds":                 func(c *Config) { c.Seeds = nil },
		"seed \"localhost\"":    func(c *Config) { c.Seeds = []string{"localhost"} },
		"fetch-max-bytes":       func(c *Config) { c.FetchMaxBytes = 10 },
		"fetch-partition-bytes": func(c *Config) { c.FetchPartitionBytes = c.FetchMaxBytes + 1<<30 },
		"cache-bytes":           func(c *Config) { c.CacheBytes = 1 << 20 },
		"prefetch-bytes":        func(c *Config) { c.PrefetchBytes = 1 },
		"catch-ups":             func(c *Config) { c.CatchUps = -1 },
		"max-wait":              func(c *Config) { c.MaxWait = time.Minute },
		"metadata-max-age":      func(c *Config) { c.MetadataMaxAge = time.Millisecond },
	} {
		c := good
		spoil(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
		if _, err := New(c, testLog()); err == nil {
			t.Errorf("%s: New took it", key)
		}
	}
}
