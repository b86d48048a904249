package serve

import (
	"context"
	"math"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/coordinator"
)

// ShareGroupDescribe (77), KIP-932.
//
//	v1: Kafka 4.1
//
// Behaviours: an unknown group, or one of another type, is GROUP_ID_NOT_FOUND, without a state; a group whose members hold
// a topic that the client may not DESCRIBE shows neither members nor state.

func (s *Server) shareGroupDescribe(ctx context.Context, r *Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.ShareGroupDescribeRequest)
	resp := req.ResponseKind().(*kmsg.ShareGroupDescribeResponse)
	ctx, cancel := answerWithin(ctx, 0)
	defer cancel()
	for _, group := range req.GroupIDs {
		resp.Groups = append(resp.Groups, s.describeGroup(ctx, r.Conn, group, req.IncludeAuthorizedOperations))
	}
	return resp, nil
}

func (s *Server) describeGroup(ctx context.Context, c *Conn, group string, operations bool) kmsg.ShareGroupDescribeResponseGroup {
	g := kmsg.NewShareGroupDescribeResponseGroup()
	g.GroupID = group
	if ok, err := s.mayGroup(ctx, c, opDescribe, group); err != nil {
		g.ErrorCode = codeCoordUnavailable
		return g
	} else if !ok {
		g.ErrorCode = codeGroupDenied
		return g
	}
	if group == "" {
		g.ErrorCode = kerr.InvalidGroupID.Code
		return g
	}
	d, err := s.o.Groups.Describe(ctx, group)
	if err != nil {
		g.ErrorCode, g.ErrorMessage = coordinatorError(err)
		return g
	}
	if code, msg := s.mayDescribe(ctx, c, d); code != codeNone {
		g.ErrorCode, g.ErrorMessage = code, msg
		return g
	}
	if operations {
		if g.AuthorizedOperations, err = s.groupOperations(ctx, c, group); err != nil {
			g.ErrorCode = codeCoordUnavailable
			return g
		}
	}
	g.GroupState, g.GroupEpoch, g.AssignmentEpoch, g.Assignor = d.State, d.GroupEpoch, d.AssignmentEpoch, d.Assignor
	for _, m := range d.Members {
		g.Members = append(g.Members, describedMember(m))
	}
	return g
}

// mayDescribe checks DESCRIBE on the topics that the group's members are assigned.
func (s *Server) mayDescribe(ctx context.Context, c *Conn, d coordinator.Description) (int16, *string) {
	seen := map[string]bool{}
	var names []string
	for _, m := range d.Members {
		for _, t := range m.Assignment {
			if !seen[t.Name] {
				seen[t.Name] = true
				names = append(names, t.Name)
			}
		}
	}
	allowed, err := s.mayTopics(ctx, c, opDescribe, names)
	if err != nil {
		return codeCoordUnavailable, nil
	}
	for _, n := range names {
		if !allowed[n] {
			return codeTopicDenied, text("The group has described topic(s) that the client is not authorized to describe.")
		}
	}
	return codeNone, nil
}

func describedMember(m coordinator.MemberDescription) kmsg.ShareGroupDescribeResponseGroupMember {
	out := kmsg.NewShareGroupDescribeResponseGroupMember()
	out.MemberID, out.RackID, out.MemberEpoch = m.Member, m.Rack, m.Epoch
	out.ClientID, out.ClientHost, out.SubscribedTopicNames = m.ClientID, m.ClientHost, m.Topics
	for _, t := range m.Assignment {
		p := kmsg.NewShareGroupDescribeResponseGroupMemberAssignmentTopicPartition()
		p.TopicID, p.Topic, p.Partitions = t.ID, t.Name, t.Partitions
		out.Assignment.TopicPartitions = append(out.Assignment.TopicPartitions, p)
	}
	return out
}

// unsaidOperations is the bit field where nothing is said of what the principal may do.
const unsaidOperations = math.MinInt32

// groupOperations is the bit field of what the principal may do on the group; unsaidOperations with an error.
func (s *Server) groupOperations(ctx context.Context, c *Conn, group string) (int32, error) {
	var bits int32
	for _, op := range []int8{opRead, opDelete, opDescribe, opDescribeConfigs, opAlterConfigs} {
		ok, err := s.mayGroup(ctx, c, op, group)
		if err != nil {
			return unsaidOperations, err
		}
		if ok {
			bits |= 1 << op
		}
	}
	return bits, nil
}
