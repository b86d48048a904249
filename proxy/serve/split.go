package serve

import "github.com/twmb/franz-go/pkg/kmsg"

// What the Split and Merge functions of requests with a list have in common: some of its groups or resources are
// kshare's, the others upstream's.

// sift divides a list, each part in the list's order.
func sift[E any](list []E, ours func(E) bool) (mine, rest []E) {
	for _, e := range list {
		if ours(e) {
			mine = append(mine, e)
		} else {
			rest = append(rest, e)
		}
	}
	return mine, rest
}

// divided is the outcome of a Split by list, given how much each side has: without anything of ours the request is relayed
// as it is, without anything of theirs it is served whole.
func divided(own kmsg.Request, mine int, theirs kmsg.Request, rest int) (kmsg.Request, kmsg.Request) {
	switch {
	case mine == 0:
		return nil, nil
	case rest == 0:
		return own, nil
	}
	return own, theirs
}

// resource is what a config request names.
type resource struct {
	kind kmsg.ConfigResourceType
	name string
}

// mergeResources puts upstream's answers behind kshare's. Where both sides were asked about one resource, a group, join
// works what upstream says into what is told.
func mergeResources[R any](own, theirs []R, of func(R) resource, join func(told *R, theirs R)) []R {
	at := map[resource]int{}
	for i, r := range own {
		at[of(r)] = i
	}
	for _, r := range theirs {
		if i, both := at[of(r)]; both {
			join(&own[i], r)
		} else {
			own = append(own, r)
		}
	}
	return own
}
