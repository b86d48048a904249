//go:build e2e

// Package client drives share consumers of several implementations through one
// interface, so that a scenario is written once and run for each.
package client

import (
	"fmt"
	"time"
)

// AckType names an acknowledgement as Kafka's clients do.
type AckType string

const (
	Accept  AckType = "ACCEPT"
	Release AckType = "RELEASE"
	Reject  AckType = "REJECT"
)

var ackTypeIDs = map[AckType]int{Accept: 1, Release: 2, Reject: 3}

// Config of one share consumer.
type Config struct {
	Name       string // unique in the run; names the log
	Bootstrap  string
	Group      string
	Topic      string
	Explicit   bool // share.acknowledgement.mode=explicit
	MaxRecords int  // max.poll.records; 0 = the client's default
	Strict     bool // share.acquire.mode=record_limit
	Login      *Login
}

// Record is one delivery.
type Record struct {
	Partition int32
	Offset    int64
	Count     int // delivery count
	Key       string
}

// Run is a range of offsets with one value: a delivery count or an ack type id.
type Run struct {
	Partition   int32
	First, Last int64
	Value       int
}

// Cycle is one poll of an audit: what was delivered, how it was acknowledged, and
// which partitions' acknowledgements failed ("*": all of them).
type Cycle struct {
	PolledAt  int64 // when the poll returned, ms of the machine's clock
	AckedAt   int64 // when the commit returned
	Delivered []Run
	Acked     []Run
	Errors    map[string]string
	PollError string
}

// AuditRules say how an audit acknowledges: every RejectEvery-th offset is rejected,
// every ReleaseEvery-th is released at its first delivery, all else is accepted.
// Zero switches a rule off. Only explicit consumers follow them.
type AuditRules struct {
	RejectEvery  int64
	ReleaseEvery int64
	Hold         time.Duration // how long a consumer works on what a poll brought
}

// ShareClient is one share consumer. Its methods are for one goroutine, except Kill.
type ShareClient interface {
	// Poll returns what comes within the timeout, perhaps nothing. In implicit mode
	// it accepts what the poll before returned.
	Poll(timeout time.Duration) ([]Record, error)
	// Ack marks a record polled since the last Commit; explicit mode only.
	Ack(r Record, how AckType) error
	// Commit sends acknowledgements and waits; the map holds failures by partition.
	Commit() (map[int32]string, error)
	// StartAudit consumes and acknowledges in a loop until StopAudit; each poll that
	// brought records is handed to sink, in order, from another goroutine.
	StartAudit(rules AuditRules, sink func(Cycle)) error
	StopAudit() error
	// Close leaves the group in the orderly way.
	Close() error
	// Kill ends the client with no farewell.
	Kill()
}

// Kind is a client implementation.
type Kind interface {
	Name() string
	Start(c Config) (ShareClient, error)
	// RecordLimit tells whether the client knows share.acquire.mode=record_limit.
	RecordLimit() bool
}

func (r Record) String() string { return fmt.Sprintf("%d-%d(%d)", r.Partition, r.Offset, r.Count) }
