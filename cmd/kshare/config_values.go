package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Readers of values that several keys share. Each returns a function that reads a value into one field of Config.

func hostPortInto(field func(*Config) *string) func(*Config, string) error {
	return func(c *Config, v string) error {
		*field(c) = v
		return checkHostPort(v, true)
	}
}

func intInto(field func(*Config) *int, low, high int, what string) func(*Config, string) error {
	return func(c *Config, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < low || n > high {
			return fmt.Errorf("%q is not %s, give a number from %d to %d", v, what, low, high)
		}
		*field(c) = n
		return nil
	}
}

func boolInto(field func(*Config) *bool) func(*Config, string) error {
	return func(c *Config, v string) error {
		switch strings.ToLower(v) {
		case "true":
			*field(c) = true
		case "false":
			*field(c) = false
		default:
			return fmt.Errorf("%q is neither true nor false", v)
		}
		return nil
	}
}

func durationInto(field func(*Config) *time.Duration, low, high time.Duration) func(*Config, string) error {
	return func(c *Config, v string) error {
		d, err := time.ParseDuration(v)
		if err != nil || d < low || d > high {
			return fmt.Errorf("%q is not a duration from %v to %v, write for example 10s", v, low, high)
		}
		*field(c) = d
		return nil
	}
}

func sizeInto(field func(*Config) *int64, low, high int64) func(*Config, string) error {
	return func(c *Config, v string) error {
		n, ok := parseSize(v)
		if !ok || n < low || n > high {
			return fmt.Errorf("%q is not a size from %s to %s, write bytes or for example 256MiB", v, formatSize(low), formatSize(high))
		}
		*field(c) = n
		return nil
	}
}

// textSetting is a key that takes any text.
func textSetting(key, arg, meaning string, field func(*Config) *string) setting {
	return setting{key: key, arg: arg, meaning: meaning,
		set: func(c *Config, v string) error { *field(c) = v; return nil },
		get: func(c *Config) string { return *field(c) }}
}

// sizeUnits goes from the largest to the smallest, so that formatSize finds the largest that divides.
var sizeUnits = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"B", 1}}

func parseSize(v string) (int64, bool) {
	digits, factor := strings.TrimSpace(v), int64(1)
	for _, unit := range sizeUnits {
		if rest, ok := strings.CutSuffix(digits, unit.name); ok {
			digits, factor = strings.TrimSpace(rest), unit.bytes
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > (1<<62)/factor {
		return 0, false
	}
	return n * factor, true
}

func formatSize(n int64) string {
	for _, unit := range sizeUnits[:3] {
		if n > 0 && n%unit.bytes == 0 {
			return strconv.FormatInt(n/unit.bytes, 10) + unit.name
		}
	}
	return strconv.FormatInt(n, 10)
}
