package serve

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/coordinator"
)

// ShareGroupHeartbeat (76), KIP-932.
//
//	v1: Kafka 4.1 (v0 is gone and incompatible)
//
// Behaviours: READ on the group, then DESCRIBE on every subscribed topic, whether it exists or not; one denied topic
// refuses the request before it has any effect. The rest is the coordinator's. Trouble with Redis or upstream is
// COORDINATOR_NOT_AVAILABLE, at which clients find the coordinator anew and go on.

func (s *Server) shareGroupHeartbeat(ctx context.Context, r *Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.ShareGroupHeartbeatRequest)
	resp := req.ResponseKind().(*kmsg.ShareGroupHeartbeatResponse)
	ctx, cancel := answerWithin(ctx, 0)
	defer cancel()
	if code, msg := s.checkHeartbeat(ctx, r, req); code != codeNone {
		resp.ErrorCode, resp.ErrorMessage = code, msg
		return resp, nil
	}
	got, err := s.o.Groups.Heartbeat(ctx, coordinator.HeartbeatRequest{
		Group: req.GroupID, Member: req.MemberID, Epoch: req.MemberEpoch, Rack: req.RackID,
		Topics: req.SubscribedTopicNames, ClientID: r.ClientID, ClientHost: "/" + r.Conn.RemoteIP,
	})
	if err != nil {
		resp.ErrorCode, resp.ErrorMessage = coordinatorError(err)
		return resp, nil
	}
	resp.MemberID, resp.MemberEpoch, resp.HeartbeatIntervalMillis = &got.Member, got.Epoch, got.IntervalMs
	if got.HasAssignment {
		a := kmsg.NewShareGroupHeartbeatResponseAssignment()
		for _, t := range got.Assignment {
			p := kmsg.NewShareGroupHeartbeatResponseAssignmentTopicPartition()
			p.TopicID, p.Partitions = t.ID, t.Partitions
			a.TopicPartitions = append(a.TopicPartitions, p)
		}
		resp.Assignment = &a
	}
	return resp, nil
}

// checkHeartbeat applies the checks that need nothing of the group: permissions and the member id, in the broker's order.
func (s *Server) checkHeartbeat(ctx context.Context, r *Request, req *kmsg.ShareGroupHeartbeatRequest) (int16, *string) {
	if ok, err := s.mayGroup(ctx, r.Conn, opRead, req.GroupID); err != nil {
		return codeCoordUnavailable, nil
	} else if !ok {
		return codeGroupDenied, nil
	}
	switch {
	case req.MemberID == "":
		return codeInvalidRequest, text("MemberId can't be empty.")
	case tooLong(req.MemberID):
		return codeInvalidRequest, text("MemberId can't be longer than 36 characters.")
	}
	names := req.SubscribedTopicNames
	allowed, err := s.mayTopics(ctx, r.Conn, opDescribe, names)
	if err != nil {
		return codeCoordUnavailable, nil
	}
	for _, n := range names {
		if !allowed[n] {
			return codeTopicDenied, nil
		}
	}
	return codeNone, nil
}

// text makes an error message for the wire.
func text(s string) *string { return &s }
