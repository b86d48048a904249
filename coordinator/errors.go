package coordinator

import "errors"

// Kinds of refusal, one per Kafka error code. Values that the coordinator returns are *Error and wrap one of them.
var (
	ErrGroupIDNotFound   = errors.New("group id not found")    // GROUP_ID_NOT_FOUND
	ErrUnknownMemberID   = errors.New("unknown member id")     // UNKNOWN_MEMBER_ID
	ErrFencedMemberEpoch = errors.New("fenced member epoch")   // FENCED_MEMBER_EPOCH
	ErrInvalidRequest    = errors.New("invalid request")       // INVALID_REQUEST
	ErrGroupMaxSize      = errors.New("group is full")         // GROUP_MAX_SIZE_REACHED
	ErrNonEmptyGroup     = errors.New("group has members")     // NON_EMPTY_GROUP
	ErrInvalidGroupID    = errors.New("invalid group id")      // INVALID_GROUP_ID
	ErrInvalidConfig     = errors.New("invalid configuration") // INVALID_CONFIG
	// ErrUnavailable is retriable (COORDINATOR_NOT_AVAILABLE): Redis or upstream did not answer.
	ErrUnavailable = errors.New("coordinator not available")
)

// Error is a refusal with the text for the client.
type Error struct {
	// Kind is one of the sentinels of this package.
	Kind error
	// Message is client-facing.
	Message string
	// Cause is what went wrong underneath, for logs. May be nil.
	Cause error
}

// Error implements error.
func (e *Error) Error() string {
	text := e.Kind.Error()
	if e.Message != "" {
		text += ": " + e.Message
	}
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Unwrap returns the kind and the cause, for errors.Is and errors.As.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}
