package serve

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"

	"kshare/coordinator"
	"kshare/proxy/upstream"
	"kshare/sharestate/statelog"
)

// Codes on the wire. Only codes that clients take quietly are used for trouble that passes: clients
// throw on COORDINATOR_* in a ShareFetch.
var (
	codeNone             = int16(0)
	codeUnknown          = kerr.UnknownServerError.Code
	codeStorage          = kerr.KafkaStorageError.Code
	codeNotLeader        = kerr.NotLeaderForPartition.Code
	codeOffsetNotAvail   = kerr.OffsetNotAvailable.Code
	codeCorrupt          = kerr.CorruptMessage.Code
	codeUnknownTopic     = kerr.UnknownTopicOrPartition.Code
	codeUnknownTopicID   = kerr.UnknownTopicID.Code
	codeTopicDenied      = kerr.TopicAuthorizationFailed.Code
	codeGroupDenied      = kerr.GroupAuthorizationFailed.Code
	codeClusterDenied    = kerr.ClusterAuthorizationFailed.Code
	codeUnsupported      = kerr.UnsupportedVersion.Code
	codeInvalidRequest   = kerr.InvalidRequest.Code
	codeInvalidState     = kerr.InvalidRecordState.Code
	codeSessionNotFound  = kerr.ShareSessionNotFound.Code
	codeSessionEpoch     = kerr.InvalidShareSessionEpoch.Code
	codeSessionLimit     = kerr.ShareSessionLimitReached.Code
	codeNoSuchGroup      = kerr.GroupIDNotFound.Code
	codeUnknownMember    = kerr.UnknownMemberID.Code
	codeCoordUnavailable = kerr.CoordinatorNotAvailable.Code
)

var (
	// errUninitialized: the group does not say that the share-partition is initialized.
	errUninitialized = errors.New("share-partition was never initialized")
	// errNoStart: share.auto.offset.reset finds no offset (by_duration without a young record).
	errNoStart = errors.New("no start offset by the reset policy")
)

// partitionTrouble maps what went wrong with one share-partition to the code that a broker has for it. passing tells that the trouble
// may pass while the fetch waits; then the code is answered only when the wait is over.
func partitionTrouble(err error) (code int16, passing bool) {
	switch {
	case err == nil:
		return codeNone, false
	case errors.Is(err, errUninitialized):
		return codeUnknown, false
	case errors.Is(err, errNoStart):
		return codeOffsetNotAvail, false
	case errors.Is(err, upstream.ErrUnknownTopicOrPartition):
		return codeUnknownTopic, false
	case errors.Is(err, upstream.ErrCorrupt):
		return codeCorrupt, false
	case errors.Is(err, upstream.ErrNotLeader):
		return codeNotLeader, true
	}
	return codeStorage, true
}

// coordinatorCodes are the Kafka codes of the coordinator's refusals.
var coordinatorCodes = []struct {
	kind error
	code *kerr.Error
}{
	{coordinator.ErrGroupIDNotFound, kerr.GroupIDNotFound},
	{coordinator.ErrUnknownMemberID, kerr.UnknownMemberID},
	{coordinator.ErrFencedMemberEpoch, kerr.FencedMemberEpoch},
	{coordinator.ErrInvalidRequest, kerr.InvalidRequest},
	{coordinator.ErrGroupMaxSize, kerr.GroupMaxSizeReached},
	{coordinator.ErrNonEmptyGroup, kerr.NonEmptyGroup},
	{coordinator.ErrInvalidGroupID, kerr.InvalidGroupID},
	{coordinator.ErrInvalidConfig, kerr.InvalidConfig},
	{coordinator.ErrUnavailable, kerr.CoordinatorNotAvailable},
}

// coordinatorError gives code and client-facing message of an error of the coordinator. What is no refusal of its own is
// COORDINATOR_NOT_AVAILABLE: clients find the coordinator anew and try again.
func coordinatorError(err error) (int16, *string) {
	if err == nil {
		return codeNone, nil
	}
	code := codeCoordUnavailable
	for _, c := range coordinatorCodes {
		if errors.Is(err, c.kind) {
			code = c.code.Code
			break
		}
	}
	var refusal *coordinator.Error
	if errors.As(err, &refusal) && refusal.Message != "" {
		return code, &refusal.Message
	}
	return code, nil
}

// codeTexts are Kafka's messages for the codes that it never sends without one.
var codeTexts = map[int16]string{
	codeUnknownTopic: "This server does not host this topic-partition.",
	codeTopicDenied:  "Topic authorization failed.",
	codeGroupDenied:  "Group authorization failed.",
}

func codeText(code int16) *string { return text(codeTexts[code]) }

// ackTrouble maps what went wrong with an acknowledgement that was not judged. KAFKA_STORAGE_ERROR makes clients send it
// again; a share-partition without a log has never handed out anything.
func ackTrouble(err error) int16 {
	if errors.Is(err, statelog.ErrMissing) || errors.Is(err, upstream.ErrUnknownTopicOrPartition) {
		return codeUnknownTopic
	}
	return codeStorage
}
