package serve

import (
	"context"
)

// Kafka's ACL operation codes.
const (
	opRead            int8 = 3
	opDelete          int8 = 6
	opDescribe        int8 = 8
	opDescribeConfigs int8 = 10
	opAlterConfigs    int8 = 11
)

// mayGroup tells whether the connection's principal may do op on the group. Without an Authorizer everybody may do
// everything, as on a broker without one.
func (s *Server) mayGroup(ctx context.Context, c *Conn, op int8, group string) (bool, error) {
	if c == nil || c.Auth == nil {
		return true, nil
	}
	return c.Auth.Group(ctx, op, group)
}

// mayTopics tells for each topic name whether the connection's principal may do op on it.
func (s *Server) mayTopics(ctx context.Context, c *Conn, op int8, names []string) (map[string]bool, error) {
	if c != nil && c.Auth != nil {
		if len(names) == 0 {
			return nil, nil
		}
		return c.Auth.Topics(ctx, op, names)
	}
	all := make(map[string]bool, len(names))
	for _, n := range names {
		all[n] = true
	}
	return all, nil
}

// mayCluster tells whether the connection's principal may do op on the cluster.
func (s *Server) mayCluster(ctx context.Context, c *Conn, op int8) (bool, error) {
	if c == nil || c.Auth == nil {
		return true, nil
	}
	return c.Auth.Cluster(ctx, op)
}
