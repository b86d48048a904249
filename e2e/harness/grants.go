//go:build e2e

package harness

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Grant is an ACL for a user, from every host.
type Grant struct {
	User     string
	Op       kmsg.ACLOperation
	Resource kmsg.ACLResourceType
	Name     string
	Prefixed bool // the name is how those of the resources begin
	Deny     bool // instead of allow
}

// String is "READ TOPIC orders", "DENY READ TOPIC orders*", "DESCRIBE CLUSTER".
func (g Grant) String() string {
	s := fmt.Sprintf("%v %v", g.Op, g.Resource)
	if g.Resource != kmsg.ACLResourceTypeCluster {
		s += " " + g.Name
	}
	if g.Prefixed {
		s += "*"
	}
	if g.Deny {
		s = "DENY " + s
	}
	return s
}

func (g Grant) pattern() kmsg.ACLResourcePatternType {
	if g.Prefixed {
		return kmsg.ACLResourcePatternTypePrefixed
	}
	return kmsg.ACLResourcePatternTypeLiteral
}

func (g Grant) permission() kmsg.ACLPermissionType {
	if g.Deny {
		return kmsg.ACLPermissionTypeDeny
	}
	return kmsg.ACLPermissionTypeAllow
}

// inside is a client that may do everything, by way of the brokers' own listener.
func (k *Kafka) inside() (*kgo.Client, error) {
	return kgo.NewClient(kgo.SeedBrokers(strings.Split(k.Inner, ",")...), kgo.DisableClientMetrics())
}

// Grant gives grants, and returns when every broker knows them.
func (k *Kafka) Grant(grants ...Grant) error {
	if len(grants) == 0 {
		return nil
	}
	cl, err := k.inside()
	if err != nil {
		return err
	}
	defer cl.Close()
	req := kmsg.NewPtrCreateACLsRequest()
	for _, g := range grants {
		a := kmsg.NewCreateACLsRequestCreation()
		a.ResourceType, a.ResourceName, a.ResourcePatternType = g.Resource, g.Name, g.pattern()
		a.Principal, a.Host, a.Operation, a.PermissionType = "User:"+g.User, "*", g.Op, g.permission()
		req.Creations = append(req.Creations, a)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return err
	}
	for i, r := range resp.Results {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			return fmt.Errorf("grant %v: %w", grants[i], err)
		}
	}
	return k.everywhere(ctx, cl, grants, true)
}

// Revoke takes grants back, and returns when no broker knows them any more.
func (k *Kafka) Revoke(grants ...Grant) error {
	cl, err := k.inside()
	if err != nil {
		return err
	}
	defer cl.Close()
	req := kmsg.NewPtrDeleteACLsRequest()
	for _, g := range grants {
		f := kmsg.NewDeleteACLsRequestFilter()
		user, host := "User:"+g.User, "*"
		f.ResourceType, f.ResourceName, f.ResourcePatternType = g.Resource, &g.Name, g.pattern()
		f.Principal, f.Host, f.Operation, f.PermissionType = &user, &host, g.Op, g.permission()
		req.Filters = append(req.Filters, f)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return err
	}
	for i, r := range resp.Results {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			return fmt.Errorf("revoke %v: %w", grants[i], err)
		}
		if len(r.MatchingACLs) != 1 {
			return fmt.Errorf("revoke %v: %d ACLs match", grants[i], len(r.MatchingACLs))
		}
	}
	return k.everywhere(ctx, cl, grants, false)
}

// everywhere waits until each broker knows the grants, or none of them. The answers to changes come from the controller.
func (k *Kafka) everywhere(ctx context.Context, cl *kgo.Client, grants []Grant, known bool) error {
	req := kmsg.NewPtrDescribeACLsRequest()
	req.ResourceType, req.ResourcePatternType = kmsg.ACLResourceTypeAny, kmsg.ACLResourcePatternTypeAny
	req.Operation, req.PermissionType = kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAny
	return Until("ACLs on all brokers", 20*time.Second, func() error {
		for _, id := range k.NodeIDs {
			r, err := cl.Broker(int(id)).Request(ctx, req)
			if err != nil {
				return err
			}
			resp := r.(*kmsg.DescribeACLsResponse)
			if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
				return err
			}
			for _, g := range grants {
				if g.in(resp) != known {
					return fmt.Errorf("%v on node %d: known %v", g, id, !known)
				}
			}
		}
		return nil
	})
}

func (g Grant) in(resp *kmsg.DescribeACLsResponse) bool {
	return slices.ContainsFunc(resp.Resources, func(r kmsg.DescribeACLsResponseResource) bool {
		return r.ResourceType == g.Resource && r.ResourceName == g.Name && r.ResourcePatternType == g.pattern() &&
			slices.ContainsFunc(r.ACLs, func(a kmsg.DescribeACLsResponseResourceACL) bool {
				return a.Principal == "User:"+g.User && a.Operation == g.Op && a.PermissionType == g.permission()
			})
	})
}
