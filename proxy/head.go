package proxy

import "github.com/twmb/franz-go/pkg/kmsg"

// headIsTheirs tells by the group id at the head of the waiting request that
// kshare has no part in it, so that it can be streamed upstream undecoded. A
// head that cannot be read, or not within the reader's buffer, tells nothing:
// such a request is read whole, and refused there if it is malformed.
func (c *conn) headIsTheirs(h header, r route) bool {
	if r.api == nil || r.api.Head == nil {
		return false
	}
	group, err := groupInHead(c.in.Peek, h, r)
	return err == nil && !r.api.Head.Own(group)
}

// groupInHead looks at no more of a frame than its group id.
func groupInHead(peek func(n int) ([]byte, error), h header, r route) (string, error) {
	flexible := h.version >= r.flexible
	c := cursor{peek: peek, off: sizeLen + headerLen, end: sizeLen + int(h.size)}
	c.string(false) // the client id
	if flexible {
		c.skipTags()
	}
	for range r.api.Head.Skip {
		c.string(flexible)
	}
	group := c.string(flexible)
	return string(group), c.err
}

// firstFlexible is the lowest version of a key with compact strings and tags.
func firstFlexible(key int16) int16 {
	req := kmsg.RequestForKey(key)
	version := int16(0)
	for ; version <= req.MaxVersion(); version++ {
		if req.SetVersion(version); req.IsFlexible() {
			break
		}
	}
	return version
}
