package proxy

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"kshare/proxy/serve"
)

// shareAPIs are advertised as Kafka 4.4 has them.
func shareAPIs() []serve.API {
	serveNothing := func(context.Context, *serve.Request) (kmsg.Response, error) { panic("not called") }
	var apis []serve.API
	for _, a := range [][3]int16{{76, 1, 1}, {77, 1, 1}, {78, 1, 2}, {79, 1, 2}, {90, 0, 1}, {91, 0, 0}, {92, 0, 0}} {
		apis = append(apis, serve.API{Key: a[0], Min: a[1], Max: a[2], Serve: serveNothing})
	}
	return apis
}

func apiVersionsRequest(version int16) *kmsg.ApiVersionsRequest {
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = version, "test", "1.0"
	return req
}

func rangesOf(resp kmsg.Response) map[int16]versionRange {
	m := map[int16]versionRange{}
	for _, k := range resp.(*kmsg.ApiVersionsResponse).ApiKeys {
		m[k.ApiKey] = versionRange{k.MinVersion, k.MaxVersion}
	}
	return m
}

func TestAPIVersionsAdvertisesShareAPIsInExactRanges(t *testing.T) {
	for name, versions := range map[string]*kversion.Versions{"stable": withoutShareGroups(), "2.8": kversion.FromString("2.8"), "3.9": kversion.FromString("3.9"), "native": kversion.Stable()} {
		t.Run(name, func(t *testing.T) {
			up := startUpstream(t, kfake.MaxVersions(versions))
			f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: shareAPIs()})
			for version := int16(0); version <= 5; version++ {
				w := f.dial()
				ranges := rangesOf(w.ask(1, apiVersionsRequest(version)))
				for _, a := range shareAPIs() {
					if ranges[a.Key] != (versionRange{a.Min, a.Max}) {
						t.Errorf("v%d: key %d is %v", version, a.Key, ranges[a.Key])
					}
				}
				for _, key := range brokerKeys {
					if r, ok := ranges[key]; ok {
						t.Errorf("v%d: broker key %d is advertised as %v", version, key, r)
					}
				}
				if ranges[fetchKey].max > 15 || ranges[metadataKey].max > 13 || ranges[apiVersionsKey] != (versionRange{0, 5}) {
					t.Errorf("v%d: Fetch %v, Metadata %v, ApiVersions %v", version, ranges[fetchKey], ranges[metadataKey], ranges[apiVersionsKey])
				}
				// The connection goes on at once.
				w.ask(2, &kmsg.MetadataRequest{Version: 9})
			}
		})
	}
}

func TestShareVersionFeatureFollowsRequestVersion(t *testing.T) {
	for name, versions := range map[string]*kversion.Versions{"3.9": kversion.FromString("3.9"), "native": kversion.Stable()} {
		up := startUpstream(t, kfake.MaxVersions(versions))
		f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: shareAPIs()})
		for version := int16(0); version <= 5; version++ {
			resp := f.dial().ask(1, apiVersionsRequest(version)).(*kmsg.ApiVersionsResponse)
			supported, finalized := 0, 0
			for _, s := range resp.SupportedFeatures {
				if s.Name == shareVersion && s.MinVersion == 0 && s.MaxVersion == 2 {
					supported++
				}
			}
			for _, s := range resp.FinalizedFeatures {
				if s.Name == shareVersion && s.MaxVersionLevel == s.MinVersionLevel && resp.FinalizedFeaturesEpoch >= 0 {
					finalized++
				}
			}
			wantSupported, wantFinalized := 0, 0
			if version >= 3 {
				wantFinalized = 1
			}
			if version >= 4 {
				wantSupported = 1
			}
			if supported != wantSupported || finalized != wantFinalized {
				t.Errorf("%s v%d: supported %d, finalized %d", name, version, supported, finalized)
			}
		}
	}
}

func TestAPIVersionsBeyondAllIsAnsweredInV0Form(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs()})
	w := f.dial()
	frame := frameOf(7, apiVersionsRequest(5))
	binary.BigEndian.PutUint16(frame[6:], 99)
	w.send(frame)
	got, err := w.receive()
	if err != nil {
		t.Fatal(err)
	}
	want := []byte{0, 0, 0, 7, 0, 35, 0, 0, 0, 1, 0, 18, 0, 0, 0, 5}
	if string(got) != string(want) {
		t.Errorf("got % x\nwant % x", got, want)
	}
	w.ask(8, apiVersionsRequest(5))
}

func TestWrongClusterOrNodeIsToldToRebootstrap(t *testing.T) {
	for name, versions := range map[string]*kversion.Versions{"upstream checks": withoutShareGroups(), "kshare checks": kversion.FromString("3.9")} {
		t.Run(name, func(t *testing.T) {
			up := startUpstream(t, kfake.MaxVersions(versions))
			f := startProxy(t, setup{addrs: up.ListenAddrs()})
			right, wrong := f.cluster.id, "another"
			for _, tt := range []struct {
				cluster *string
				node    int32
				want    int16
			}{
				{nil, -1, 0}, {&right, 1, 0}, {&wrong, 1, kerr.RebootstrapRequired.Code}, {&right, 2, kerr.RebootstrapRequired.Code},
				{nil, 1, kerr.InvalidRequest.Code}, {&right, -1, kerr.InvalidRequest.Code},
			} {
				req := apiVersionsRequest(5)
				req.ClusterID, req.NodeID = tt.cluster, tt.node
				resp := dialWire(t, f.nodeAddr(1)).ask(1, req).(*kmsg.ApiVersionsResponse)
				if resp.ErrorCode != tt.want {
					t.Errorf("cluster %v node %d: error %d, want %d", tt.cluster, tt.node, resp.ErrorCode, tt.want)
				}
			}
		})
	}
}

func TestUnadvertisedIsClosedAndListenerSurvives(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: shareAPIs()})
	frame := func(key, version int16) []byte {
		b := frameOf(1, &kmsg.ListGroupsRequest{})
		binary.BigEndian.PutUint16(b[4:], uint16(key))
		binary.BigEndian.PutUint16(b[6:], uint16(version))
		return b
	}
	for _, tt := range []struct {
		key, version int16
		reason       CloseReason
	}{
		{78, 0, CloseUnsupported}, {78, 3, CloseUnsupported}, {76, 0, CloseUnsupported}, {76, 2, CloseUnsupported},
		{fetchKey, 16, CloseUnsupported}, {describeQuorumKey, 3, CloseUnsupported}, {metadataKey, 14, CloseUnsupported}, {metadataKey, -1, CloseUnsupported},
		{999, 0, CloseUnsupportedAPI}, {-5, 0, CloseUnsupportedAPI}, {83, 0, CloseUnsupportedAPI}, {4, 0, CloseUnsupportedAPI},
	} {
		before := f.closedWith(tt.reason)
		w := f.dial()
		w.send(frame(tt.key, tt.version))
		w.expectClosed()
		eventually(t, string(tt.reason), func() bool { return f.closedWith(tt.reason) == before+1 })
	}
	f.dial().ask(1, apiVersionsRequest(5))
}
