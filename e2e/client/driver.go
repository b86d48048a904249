//go:build e2e

package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync/atomic"
	"time"

	"kshare/e2e/harness"
)

// Driver is a client program that takes JSON lines: the Java or the Python one.
type Driver struct {
	process  *harness.Process
	told     []AckResult
	auditing chan error // not nil while an audit runs; carries its end
	killed   atomic.Bool
}

// answer is any line that a driver prints.
type answer struct {
	OK      bool              `json:"ok"`
	Error   string            `json:"error"`
	Records [][]any           `json:"records"`
	Errors  map[string]string `json:"errors"`
	N       int               `json:"n"`
	Digest  string            `json:"digest"`
	Lines   []string          `json:"lines"`

	Committed []int32 `json:"committed"`
	Callbacks [][]any `json:"callbacks"`

	Delivered [][4]int64 `json:"delivered"`
	Acked     [][4]int64 `json:"acked"`
	PollError string     `json:"pollError"`
	PolledAt  int64      `json:"polledAt"`
	AckedAt   int64      `json:"ackedAt"`
}

// isCycle tells lines of a running audit from the answer that ends it.
func (a *answer) isCycle() bool { return !a.OK && a.Error == "" }

const callTimeout = 150 * time.Second

func (d *Driver) send(command map[string]any) error {
	b, err := json.Marshal(command)
	if err != nil {
		return err
	}
	_, err = d.process.Stdin.Write(append(b, '\n'))
	return err
}

func (d *Driver) receive(timeout time.Duration) (*answer, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case line, ok := <-d.process.Lines:
		if !ok {
			return nil, errors.New(d.process.Name + " has ended")
		}
		var a answer
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			return nil, fmt.Errorf("%s said %q: %w", d.process.Name, line, err)
		}
		return &a, nil
	case <-timer.C:
		return nil, fmt.Errorf("%s: no answer within %v", d.process.Name, timeout)
	}
}

// Call sends a command and waits for its answer.
func (d *Driver) Call(op string, args map[string]any) (*answer, error) {
	if d.auditing != nil {
		return nil, fmt.Errorf("%s during an audit", op)
	}
	command := map[string]any{"op": op}
	maps.Copy(command, args)
	if err := d.send(command); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", d.process.Name, op, err)
	}
	a, err := d.receive(callTimeout)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	if a.Error != "" {
		return nil, fmt.Errorf("%s: %s: %s", d.process.Name, op, a.Error)
	}
	for _, c := range a.Callbacks {
		d.told = append(d.told, AckResult{Partition: int32(c[0].(float64)), Offset: int64(c[1].(float64)), Error: c[2].(string)})
	}
	return a, nil
}

// AckResult is what an acknowledgement callback is told of one record; Error is empty for a success.
type AckResult struct {
	Partition int32
	Offset    int64
	Error     string
}

// Told returns what the acknowledgement callback has been told since the last Told.
func (d *Driver) Told() []AckResult {
	told := d.told
	d.told = nil
	return told
}

// Poll implements ShareClient.
func (d *Driver) Poll(timeout time.Duration) ([]Record, error) {
	a, err := d.Call("poll", map[string]any{"timeoutMs": timeout.Milliseconds()})
	if err != nil {
		return nil, err
	}
	records := make([]Record, len(a.Records))
	for i, r := range a.Records {
		records[i] = Record{Partition: int32(r[0].(float64)), Offset: int64(r[1].(float64)), Count: int(r[2].(float64)), Key: r[3].(string)}
	}
	return records, nil
}

// Ack implements ShareClient.
func (d *Driver) Ack(r Record, how AckType) error {
	_, err := d.Call("ack", map[string]any{"partition": r.Partition, "offset": r.Offset, "type": string(how)})
	return err
}

// Commit implements ShareClient.
func (d *Driver) Commit() (map[int32]string, error) {
	_, failed, err := d.CommitSync()
	return failed, err
}

// CommitSync is Commit that tells which partitions have a result at all; the Python driver does not.
func (d *Driver) CommitSync() (partitions []int32, failed map[int32]string, err error) {
	a, err := d.Call("commit", nil)
	if err != nil {
		return nil, nil, err
	}
	failed = map[int32]string{}
	for p, e := range a.Errors {
		n, err := strconv.Atoi(p)
		if err != nil {
			return nil, nil, err
		}
		failed[int32(n)] = e
	}
	return a.Committed, failed, nil
}

// StartAudit implements ShareClient.
func (d *Driver) StartAudit(rules AuditRules, sink func(Cycle)) error {
	err := d.send(map[string]any{"op": "audit", "rejectEvery": rules.RejectEvery, "releaseEvery": rules.ReleaseEvery,
		"holdMs": rules.Hold.Milliseconds()})
	if err != nil {
		return err
	}
	d.auditing = make(chan error, 1)
	go func(end chan<- error) {
		for {
			a, err := d.receive(24 * time.Hour)
			switch {
			case err != nil:
				end <- err
				return
			case a.isCycle():
				sink(Cycle{PolledAt: a.PolledAt, AckedAt: a.AckedAt, Delivered: runs(a.Delivered), Acked: runs(a.Acked),
					Errors: a.Errors, PollError: a.PollError})
			case a.Error != "":
				end <- errors.New(d.process.Name + ": audit: " + a.Error)
				return
			default:
				end <- nil
				return
			}
		}
	}(d.auditing)
	return nil
}

func runs(in [][4]int64) []Run {
	out := make([]Run, len(in))
	for i, r := range in {
		out[i] = Run{Partition: int32(r[0]), First: r[1], Last: r[2], Value: int(r[3])}
	}
	return out
}

// StopAudit implements ShareClient.
func (d *Driver) StopAudit() error {
	if err := d.send(map[string]any{"op": "stop"}); err != nil {
		return err
	}
	select {
	case err := <-d.auditing:
		d.auditing = nil
		if err != nil {
			return err
		}
	case <-time.After(callTimeout):
		return fmt.Errorf("%s: the audit did not stop", d.process.Name)
	}
	_, err := d.receive(callTimeout) // the answer to stop itself
	return err
}

// Close implements ShareClient: the client closes, then the process ends.
func (d *Driver) Close() error {
	if d.killed.Load() || !d.process.Running() {
		return nil
	}
	_, err := d.Call("close", nil)
	if d.auditing == nil {
		d.send(map[string]any{"op": "exit"})
	}
	d.process.Kill()
	return err
}

// Kill implements ShareClient.
func (d *Driver) Kill() {
	d.killed.Store(true)
	d.process.Kill()
}
