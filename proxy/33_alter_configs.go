package proxy

import "github.com/twmb/franz-go/pkg/kmsg"

// AlterConfigs: v0-2, and IncrementalAlterConfigs (44): v0-1 (package serve has
// the files for GROUP resources); addresses in upstream's messages about BROKER
// resources rewritten
//
//   - a change that does not go with a broker's listeners is refused with all of
//     them in the message, those of controllers included
//   - what the client itself gave as an address reads as kshare's there too

func rewriteAlterConfigs(n *nodes, version int16, resp []byte) ([]byte, error) {
	decoded, err := decodeResponse(alterConfigsKey, version, resp)
	if err != nil {
		return nil, err
	}
	r := decoded.(*kmsg.AlterConfigsResponse)
	for _, res := range r.Resources {
		if res.ResourceType == kmsg.ConfigResourceTypeBroker {
			n.rewriteMessage(nodeID(res.ResourceName), res.ErrorMessage)
		}
	}
	return appendRewritten(resp, r), nil
}

func rewriteIncrementalAlterConfigs(n *nodes, version int16, resp []byte) ([]byte, error) {
	decoded, err := decodeResponse(incrementalAlterConfigsKey, version, resp)
	if err != nil {
		return nil, err
	}
	r := decoded.(*kmsg.IncrementalAlterConfigsResponse)
	for _, res := range r.Resources {
		if res.ResourceType == kmsg.ConfigResourceTypeBroker {
			n.rewriteMessage(nodeID(res.ResourceName), res.ErrorMessage)
		}
	}
	return appendRewritten(resp, r), nil
}
