package serve

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A share group's id in a request for groups of another type. Group ids are one namespace, but upstream does
// not know of the groups here and would let another kind of group grow under the same id; so kshare refuses, as a broker
// that has the share group. Here are the APIs whose requests name one group; those with a list of groups have files of
// their own: OffsetFetch (9), DescribeGroups (15), ConsumerGroupDescribe (69), StreamsGroupDescribe (89). DeleteGroups
// (42) deletes share groups. AddOffsetsToTxn (25) does no harm, for the commit that follows it is refused.
//
// Behaviours: the group's ACL comes first, as on a broker; what the request says of members, generations and topics is
// not looked at. An id that this replica does not know to be a share group's is upstream's.

// misuse tells how an API refuses a share group's id.
type misuse[R kmsg.Request] struct {
	key int16
	// skip is how many strings of the request stand before the group id.
	skip int
	// op on the group is what the client must be allowed to do, to get the answer code.
	op     int8
	code   int16
	group  func(R) string
	refuse func(req R, code int16) kmsg.Response
}

func (s *Server) wrongTypeAPIs() []API {
	return []API{
		misuse[*kmsg.OffsetCommitRequest]{
			key: 8, op: opRead, code: codeNoSuchGroup, refuse: refuseOffsetCommit,
			group: func(r *kmsg.OffsetCommitRequest) string { return r.Group },
		}.api(s),
		misuse[*kmsg.JoinGroupRequest]{
			key: 11, op: opRead, code: kerr.InconsistentGroupProtocol.Code, refuse: refuseJoinGroup,
			group: func(r *kmsg.JoinGroupRequest) string { return r.Group },
		}.api(s),
		misuse[*kmsg.HeartbeatRequest]{
			key: 12, op: opRead, code: codeUnknownMember, refuse: refuseHeartbeat,
			group: func(r *kmsg.HeartbeatRequest) string { return r.Group },
		}.api(s),
		misuse[*kmsg.LeaveGroupRequest]{
			key: 13, op: opRead, code: codeUnknownMember, refuse: refuseLeaveGroup,
			group: func(r *kmsg.LeaveGroupRequest) string { return r.Group },
		}.api(s),
		misuse[*kmsg.SyncGroupRequest]{
			key: 14, op: opRead, code: codeUnknownMember, refuse: refuseSyncGroup,
			group: func(r *kmsg.SyncGroupRequest) string { return r.Group },
		}.api(s),
		misuse[*kmsg.TxnOffsetCommitRequest]{
			key: 28, skip: 1, op: opRead, code: codeNoSuchGroup, refuse: refuseTxnOffsetCommit,
			group: func(r *kmsg.TxnOffsetCommitRequest) string { return r.Group },
		}.api(s),
		misuse[*kmsg.OffsetDeleteRequest]{
			key: 47, op: opDelete, code: codeNoSuchGroup, refuse: refuseOffsetDelete,
			group: func(r *kmsg.OffsetDeleteRequest) string { return r.Group },
		}.api(s),
		misuse[*kmsg.ConsumerGroupHeartbeatRequest]{
			key: 68, op: opRead, code: codeNoSuchGroup, refuse: refuseConsumerHeartbeat,
			group: func(r *kmsg.ConsumerGroupHeartbeatRequest) string { return r.Group },
		}.api(s),
		misuse[*kmsg.StreamsGroupHeartbeatRequest]{
			key: 88, op: opRead, code: codeNoSuchGroup, refuse: refuseStreamsHeartbeat,
			group: func(r *kmsg.StreamsGroupHeartbeatRequest) string { return r.Group },
		}.api(s),
	}
}

func (m misuse[R]) api(s *Server) API {
	return API{
		Key: m.key, Max: -1, Relayed: true,
		Head: &Head{Skip: m.skip, Own: s.isShareGroup},
		Split: func(_ *Server, body kmsg.Request) (own, theirs kmsg.Request) {
			if s.isShareGroup(m.group(body.(R))) {
				return body, nil
			}
			return nil, nil
		},
		Serve: func(ctx context.Context, r *Request) (kmsg.Response, error) {
			req := r.Body.(R)
			return m.refuse(req, s.refusal(ctx, r.Conn, m.op, m.group(req), m.code)), nil
		},
	}
}

func (s *Server) isShareGroup(group string) bool { return s.o.Groups.IsShareGroup(group) }

// refusal is code, unless the client may not even learn that much of the group.
func (s *Server) refusal(ctx context.Context, c *Conn, op int8, group string, code int16) int16 {
	ctx, cancel := answerWithin(ctx, 0)
	defer cancel()
	switch ok, err := s.mayGroup(ctx, c, op, group); {
	case err != nil:
		return codeCoordUnavailable
	case !ok:
		return codeGroupDenied
	}
	return code
}

// notOfType is the message with the code for a group of another type; other codes have none.
func notOfType(kind, group string, code int16) *string {
	if code != codeNoSuchGroup {
		return nil
	}
	return text("Group " + group + " is not a " + kind + " group.")
}

// v7: the protocol is null rather than ""
func refuseJoinGroup(req *kmsg.JoinGroupRequest, code int16) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.JoinGroupResponse)
	resp.ErrorCode = code
	return resp
}

func refuseHeartbeat(req *kmsg.HeartbeatRequest, code int16) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.HeartbeatResponse)
	resp.ErrorCode = code
	return resp
}

func refuseSyncGroup(req *kmsg.SyncGroupRequest, code int16) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.SyncGroupResponse)
	resp.ErrorCode = code
	return resp
}

// v3: several members, each told for itself that it is unknown, and then no error on top
func refuseLeaveGroup(req *kmsg.LeaveGroupRequest, code int16) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.LeaveGroupResponse)
	if req.Version < 3 || code != codeUnknownMember {
		resp.ErrorCode = code
		return resp
	}
	for _, m := range req.Members {
		out := kmsg.NewLeaveGroupResponseMember()
		out.MemberID, out.InstanceID, out.ErrorCode = m.MemberID, m.InstanceID, code
		resp.Members = append(resp.Members, out)
	}
	return resp
}

// v10: topics by id
func refuseOffsetCommit(req *kmsg.OffsetCommitRequest, code int16) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.OffsetCommitResponse)
	for _, t := range req.Topics {
		out := kmsg.NewOffsetCommitResponseTopic()
		out.Topic, out.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			refused := kmsg.NewOffsetCommitResponseTopicPartition()
			refused.Partition, refused.ErrorCode = p.Partition, code
			out.Partitions = append(out.Partitions, refused)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// v6: topics by id
func refuseTxnOffsetCommit(req *kmsg.TxnOffsetCommitRequest, code int16) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.TxnOffsetCommitResponse)
	for _, t := range req.Topics {
		out := kmsg.NewTxnOffsetCommitResponseTopic()
		out.Topic, out.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			refused := kmsg.NewTxnOffsetCommitResponseTopicPartition()
			refused.Partition, refused.ErrorCode = p.Partition, code
			out.Partitions = append(out.Partitions, refused)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

func refuseOffsetDelete(req *kmsg.OffsetDeleteRequest, code int16) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.OffsetDeleteResponse)
	resp.ErrorCode = code
	return resp
}

func refuseConsumerHeartbeat(req *kmsg.ConsumerGroupHeartbeatRequest, code int16) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ConsumerGroupHeartbeatResponse)
	resp.ErrorCode, resp.ErrorMessage = code, notOfType("consumer", req.Group, code)
	return resp
}

func refuseStreamsHeartbeat(req *kmsg.StreamsGroupHeartbeatRequest, code int16) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.StreamsGroupHeartbeatResponse)
	resp.ErrorCode, resp.ErrorMessage = code, notOfType("streams", req.Group, code)
	resp.Status = []kmsg.StreamsGroupHeartbeatResponseStatus{} // not null, as a broker's
	return resp
}
