package coordinator

import (
	"encoding/binary"
	"fmt"
	"math"
)

// kind numbers an op in the log. Numbers and meanings are frozen: a changed rule is a new kind.
type kind byte

const (
	kindCreate        kind = 1
	kindDelete        kind = 2
	kindHeartbeat     kind = 3
	kindTopicMetadata kind = 4
	kindSetConfig     kind = 5
	kindResume        kind = 6
	kindExpire        kind = 7
	kindSetOffsets    kind = 8
	kindDeleteOffsets kind = 9
)

// Op is a transition of Group. All that its result depends on, apart from the state and the log time,
// is inside.
type Op interface {
	kind() kind
	append(b []byte) []byte
}

// AsOf is when an op was submitted, in µs of log time as its replica knew it; 0 = not said. Silence of members after
// that does not count: an op that was held up, because Redis was frozen say, would else time out everybody whose
// heartbeats were held up with it. It is kept in milliseconds, rounded down.
type AsOf int64

const asOfUnit = 1000

// Create makes the group exist, with no members and epoch 0. Result: CodeOK, also when it existed.
type Create struct{}

// Delete removes a group without members; its configs stay. Result: CodeOK, CodeGroupMissing or
// CodeNonEmpty.
type Delete struct{ AsOf AsOf }

// Heartbeat is a member's join (epoch 0), keep-alive, subscription change or leave (epoch -1). Result:
// a HeartbeatResult.
type Heartbeat struct {
	Member string
	Epoch  int32
	// Rack and Topics are nil where unchanged.
	Rack   *string
	Topics []string
	// Client is nil where unchanged, to keep the op of a keep-alive small.
	Client   *Client
	Settings Settings
	AsOf     AsOf
}

// Client says where a member comes from.
type Client struct{ ID, Host string }

// TopicMetadata tells what upstream says about topics: their id and partition count, or that the topic
// of that name and id is gone. Result: CodeOK.
type TopicMetadata struct {
	Topics []Topic
	Gone   []Topic
	AsOf   AsOf
}

// SetConfig changes the group's configs, all at once, whether the group exists or not. Values were
// validated before. Result: CodeOK.
type SetConfig struct {
	// Replace drops all other configs first (legacy AlterConfigs).
	Replace bool
	Set     []Setting
	Delete  []string
}

// Setting is one config that is set on a group.
type Setting struct{ Key, Value string }

// Resume restarts the session of every member: after an outage of Redis nobody may be timed out for
// heartbeats that could not arrive. Result: CodeOK.
type Resume struct{ Settings Settings }

// Expire removes members whose session is over. Every other op but Resume does so first by itself;
// readers submit this one when they meet such members. Result: CodeOK.
type Expire struct{ AsOf AsOf }

// SetOffsets initializes share-partitions of a group without members anew, at given offsets
// (AlterShareGroupOffsets). Result: CodeOK, CodeGroupMissing or CodeNonEmpty.
type SetOffsets struct {
	Topics []TopicOffsets
	AsOf   AsOf
}

// TopicOffsets gives start offsets of partitions of one topic.
type TopicOffsets struct {
	Topic   Topic
	Offsets []PartitionOffset
}

// PartitionOffset is the start offset of one partition.
type PartitionOffset struct {
	Partition int32
	Offset    int64
}

// DeleteOffsets makes all share-partitions of topics uninitialized (DeleteShareGroupOffsets), in a group
// without members. Result: CodeOK, CodeGroupMissing or CodeNonEmpty.
type DeleteOffsets struct {
	IDs  [][16]byte
	AsOf AsOf
}

// Settings are the broker-level settings that a transition depends on. They ride in the op, because
// replicas may be configured differently for a while.
type Settings struct {
	// Times in milliseconds.
	SessionTimeout, SessionTimeoutMin, SessionTimeoutMax             int32
	AssignmentInterval, AssignmentIntervalMin, AssignmentIntervalMax int32
	MaxSize                                                          int32
}

// shippedSettings are Kafka's defaults at format version 1. They are frozen: an op that carries them
// says so in one byte.
var shippedSettings = Settings{
	SessionTimeout: 45000, SessionTimeoutMin: 45000, SessionTimeoutMax: 60000,
	AssignmentInterval: 1000, AssignmentIntervalMin: 0, AssignmentIntervalMax: 15000,
	MaxSize: 200,
}

func (Create) kind() kind        { return kindCreate }
func (Delete) kind() kind        { return kindDelete }
func (Heartbeat) kind() kind     { return kindHeartbeat }
func (TopicMetadata) kind() kind { return kindTopicMetadata }
func (SetConfig) kind() kind     { return kindSetConfig }
func (Resume) kind() kind        { return kindResume }
func (Expire) kind() kind        { return kindExpire }
func (SetOffsets) kind() kind    { return kindSetOffsets }
func (DeleteOffsets) kind() kind { return kindDeleteOffsets }

// EncodeOp appends the op as it stands in the log.
func EncodeOp(dst []byte, op Op) []byte {
	return op.append(append(dst, byte(op.kind())))
}

// DecodeOp reads an op. An unknown kind is an error: the group must stop, never skip it.
func DecodeOp(b []byte) (Op, error) {
	r := &reader{b: b}
	k := kind(r.byte())
	if r.err != nil {
		return nil, r.err
	}
	decode, ok := decoders[k]
	if !ok {
		return nil, fmt.Errorf("%w: unknown op kind %d", errMalformed, k)
	}
	op := decode(r)
	if err := r.end(); err != nil {
		return nil, err
	}
	return op, nil
}

var decoders = map[kind]func(*reader) Op{
	kindCreate:        func(*reader) Op { return Create{} },
	kindDelete:        func(r *reader) Op { return Delete{AsOf: r.asOf()} },
	kindHeartbeat:     decodeHeartbeat,
	kindTopicMetadata: decodeTopicMetadata,
	kindSetConfig:     decodeSetConfig,
	kindResume:        func(r *reader) Op { return Resume{Settings: r.settings()} },
	kindExpire:        func(r *reader) Op { return Expire{AsOf: r.asOf()} },
	kindSetOffsets:    decodeSetOffsets,
	kindDeleteOffsets: decodeDeleteOffsets,
}

func (Create) append(b []byte) []byte   { return b }
func (o Delete) append(b []byte) []byte { return appendAsOf(b, o.AsOf) }
func (o Expire) append(b []byte) []byte { return appendAsOf(b, o.AsOf) }
func (o Resume) append(b []byte) []byte {
	return appendSettings(b, o.Settings)
}

const (
	heartbeatRack byte = 1 << iota
	heartbeatTopics
	heartbeatClient
)

func (o Heartbeat) append(b []byte) []byte {
	var flags byte
	if o.Rack != nil {
		flags |= heartbeatRack
	}
	if o.Topics != nil {
		flags |= heartbeatTopics
	}
	if o.Client != nil {
		flags |= heartbeatClient
	}
	b = appendInt32(appendString(append(b, flags), o.Member), o.Epoch)
	if o.Rack != nil {
		b = appendString(b, *o.Rack)
	}
	if o.Topics != nil {
		b = appendStrings(b, o.Topics)
	}
	if o.Client != nil {
		b = appendString(appendString(b, o.Client.ID), o.Client.Host)
	}
	return appendAsOf(appendSettings(b, o.Settings), o.AsOf)
}

func decodeHeartbeat(r *reader) Op {
	flags := r.byte()
	if flags > heartbeatRack|heartbeatTopics|heartbeatClient {
		r.fail("heartbeat flags")
	}
	o := Heartbeat{Member: r.string(), Epoch: r.int32()}
	if flags&heartbeatRack != 0 {
		rack := r.string()
		o.Rack = &rack
	}
	if flags&heartbeatTopics != 0 {
		o.Topics = r.strings()
	}
	if flags&heartbeatClient != 0 {
		o.Client = &Client{ID: r.string(), Host: r.string()}
	}
	o.Settings, o.AsOf = r.settings(), r.asOf()
	return o
}

func (o TopicMetadata) append(b []byte) []byte {
	return appendAsOf(appendTopics(appendTopics(b, o.Topics), o.Gone), o.AsOf)
}

func decodeTopicMetadata(r *reader) Op {
	return TopicMetadata{Topics: r.topics(), Gone: r.topics(), AsOf: r.asOf()}
}

func (o SetConfig) append(b []byte) []byte {
	b = binary.AppendUvarint(appendBool(b, o.Replace), uint64(len(o.Set)))
	for _, s := range o.Set {
		b = appendString(appendString(b, s.Key), s.Value)
	}
	return appendStrings(b, o.Delete)
}

func decodeSetConfig(r *reader) Op {
	o := SetConfig{Replace: r.bool()}
	for range r.count(2) {
		o.Set = append(o.Set, Setting{Key: r.string(), Value: r.string()})
	}
	o.Delete = r.strings()
	return o
}

func (o SetOffsets) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(o.Topics)))
	for _, t := range o.Topics {
		b = binary.AppendUvarint(appendTopic(b, t.Topic), uint64(len(t.Offsets)))
		for _, p := range t.Offsets {
			b = binary.AppendVarint(appendInt32(b, p.Partition), p.Offset)
		}
	}
	return appendAsOf(b, o.AsOf)
}

func decodeSetOffsets(r *reader) Op {
	var o SetOffsets
	for range r.count(19) {
		t := TopicOffsets{Topic: r.topic()}
		for range r.count(2) {
			p := PartitionOffset{Partition: r.partition(), Offset: r.varint()}
			t.Offsets = append(t.Offsets, p)
		}
		o.Topics = append(o.Topics, t)
	}
	o.AsOf = r.asOf()
	return o
}

func (o DeleteOffsets) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(o.IDs)))
	for _, id := range o.IDs {
		b = append(b, id[:]...)
	}
	return appendAsOf(b, o.AsOf)
}

func decodeDeleteOffsets(r *reader) Op {
	var o DeleteOffsets
	for range r.count(16) {
		o.IDs = append(o.IDs, r.id())
	}
	o.AsOf = r.asOf()
	return o
}

func appendTopics(b []byte, topics []Topic) []byte {
	b = binary.AppendUvarint(b, uint64(len(topics)))
	for _, t := range topics {
		b = appendTopic(b, t)
	}
	return b
}

func appendTopic(b []byte, t Topic) []byte {
	return appendInt32(append(appendString(b, t.Name), t.ID[:]...), t.Partitions)
}

func (r *reader) topics() []Topic {
	var topics []Topic
	for range r.count(18) {
		topics = append(topics, r.topic())
	}
	return topics
}

func (r *reader) topic() Topic {
	t := Topic{Name: r.string(), ID: r.id(), Partitions: r.int32()}
	if t.Partitions < 0 || t.Partitions > maxPartitions {
		r.fail("partition count")
	}
	return t
}

func (r *reader) partition() int32 {
	p := r.int32()
	if p < 0 || p >= maxPartitions {
		r.fail("partition")
	}
	return p
}

func appendSettings(b []byte, s Settings) []byte {
	if s == shippedSettings {
		return append(b, 0)
	}
	b = append(b, 1)
	for _, v := range [...]int32{
		s.SessionTimeout, s.SessionTimeoutMin, s.SessionTimeoutMax,
		s.AssignmentInterval, s.AssignmentIntervalMin, s.AssignmentIntervalMax, s.MaxSize,
	} {
		b = appendInt32(b, v)
	}
	return b
}

func (r *reader) settings() Settings {
	if !r.bool() {
		return shippedSettings
	}
	var s Settings
	for _, v := range [...]*int32{
		&s.SessionTimeout, &s.SessionTimeoutMin, &s.SessionTimeoutMax,
		&s.AssignmentInterval, &s.AssignmentIntervalMin, &s.AssignmentIntervalMax, &s.MaxSize,
	} {
		*v = r.int32()
	}
	return s
}

func appendAsOf(b []byte, a AsOf) []byte {
	return binary.AppendUvarint(b, uint64(max(a, 0)/asOfUnit))
}

func (r *reader) asOf() AsOf {
	v := r.uvarint()
	if v > math.MaxInt64/asOfUnit {
		r.fail("time")
		return 0
	}
	return AsOf(v * asOfUnit)
}
