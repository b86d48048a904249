//go:build e2e

package client

import (
	"fmt"
	"os"
	"path/filepath"

	"kshare/e2e/harness"
)

// Python is librdkafka's share consumer, by way of confluent-kafka.
type Python struct{ Suite *harness.Suite }

// Name implements Kind.
func (Python) Name() string { return "python" }

// RecordLimit implements Kind: librdkafka speaks version 1 of ShareFetch.
func (Python) RecordLimit() bool { return false }

// Start implements Kind.
func (k Python) Start(c Config) (ShareClient, error) {
	if c.Strict {
		return nil, fmt.Errorf("librdkafka knows no record_limit")
	}
	python := filepath.Join(k.Suite.Root, "python", ".venv", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		return nil, fmt.Errorf("the Python driver is missing: run e2e/setup.sh smoke: %w", err)
	}
	config := map[string]any{
		"bootstrap.servers":          c.Bootstrap,
		"group.id":                   c.Group,
		"client.id":                  c.Name,
		"share.acknowledgement.mode": mode(c.Explicit),
	}
	if c.MaxRecords > 0 {
		config["max.poll.records"] = c.MaxRecords
	}
	if c.Login != nil {
		for key, value := range c.Login.librdkafka() {
			config[key] = value
		}
	}
	p, err := k.Suite.Start("client-"+c.Name, []string{"PYTHONUNBUFFERED=1"}, python, filepath.Join("python", "driver.py"))
	if err != nil {
		return nil, err
	}
	d := &Driver{process: p}
	if _, err := d.Call("start", map[string]any{"config": config, "topic": c.Topic}); err != nil {
		d.Kill()
		return nil, err
	}
	return d, nil
}
