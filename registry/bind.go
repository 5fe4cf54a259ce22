package registry

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// BindOptions are options of [Bind]. The zero value is usable.
type BindOptions struct {
	// Schema is the schema of T. Defaults to what [Reflect] returns. Needed where the
	// topic has a codec of its own.
	Schema string
	// Reflect are the options of that.
	Reflect ReflectOptions
	// Settings are set for the topic before the schema is registered, unless they would not
	// let it in. Zero fields leave what is set already.
	Settings Settings
	// Registered asks for a schema that is registered already, by whoever deploys:
	// Bind looks it up and changes nothing.
	Registered bool
	// By, Metadata and Force are those of RegisterOptions.
	By       string
	Metadata map[string]string
	Force    bool
	// Upcasters turn events of the version that is the key into events of the next
	// one, up to the version of T. They must not be changed any more.
	Upcasters map[int]Upcaster
	// NormalizedOptions.NewerDelay of subscriptions. Defaults to 1 second.
	NewerDelay time.Duration
}

func (o BindOptions) valid(ownCodec bool, contentType string) error {
	switch {
	case o.Registered && (o.Settings != Settings{} || o.Force || o.By != "" || len(o.Metadata) > 0):
		return fmt.Errorf("%w: Registered with Settings, By, Metadata or Force, which would change something", jetbus.ErrInvalidOption)
	case o.Schema != "" && o.Reflect != ReflectOptions{}:
		return fmt.Errorf("%w: Schema with Reflect; choose one", jetbus.ErrInvalidOption)
	case o.Schema == "" && ownCodec:
		return fmt.Errorf("%w: the topic has a codec of its own: set Schema to the schema of what it writes", jetbus.ErrInvalidOption)
	case !isJSONType(contentType):
		return fmt.Errorf("%w: the topic's codec writes %.100q, which is no JSON", jetbus.ErrInvalidOption, contentType)
	}
	return nil
}

// Topic is a jetbus.Topic whose events follow the schema of T. [Bind] makes one; it
// is safe for concurrent use.
type Topic[T any] struct {
	topic   jetbus.Topic[T]
	version Version
	write   validated // for check alone: it has no backend
	read    *Normalizer
}

// Bind registers the schema of T as a version of a topic's schema, if it is not one
// already, and returns a topic that publishes and receives by it: whatever is
// registered later, this program writes and reads the version that it was written
// for. Call it at the start of the program: where the type was changed in a way that
// breaks the topic's level it fails with an [IncompatibleError], which shows a value
// that breaks.
//
// Other errors are those of [Reflect], [Registry.UpdateSettings] and
// [Registry.Register], with Registered those of [Registry.Find], or wrap
// jetbus.ErrInvalidOption.
func Bind[T any](ctx context.Context, r *Registry, t jetbus.Topic[T], o BindOptions) (*Topic[T], error) {
	bound, err := bind(ctx, r, t, o)
	if err != nil {
		return nil, fmt.Errorf("bind %s to %s: %w", reflect.TypeFor[T](), t.Name, err)
	}
	return bound, nil
}

func bind[T any](ctx context.Context, r *Registry, t jetbus.Topic[T], o BindOptions) (*Topic[T], error) {
	if err := jetbus.ValidTopic(t.Name); err != nil {
		return nil, err
	}
	if r == nil {
		return nil, fmt.Errorf("%w: no registry", jetbus.ErrInvalidOption)
	}
	codec, contentType := t.Codec, ""
	if codec != nil {
		contentType = codec.ContentType()
	}
	_, standard := codec.(jetbus.JSONCodec[T])
	if err := o.valid(codec != nil && !standard, contentType); err != nil {
		return nil, err
	}
	normalized := NormalizedOptions{NewerDelay: o.NewerDelay}
	if len(o.Upcasters) > 0 {
		normalized.Upcasters = Upcasters{t.Name: o.Upcasters}
	}
	if err := normalized.valid(); err != nil {
		return nil, err
	}
	v, err := o.admit(ctx, r, t.Name, func() (string, error) { return Reflect[T](o.Reflect) })
	if err != nil {
		return nil, err
	}
	normalized.Versions = map[string]int{t.Name: v.Number}
	return &Topic[T]{
		topic: t, version: v,
		write: validated{r: r, o: ValidatedOptions{Versions: normalized.Versions}},
		read:  NewNormalizer(r, normalized),
	}, nil
}

// admit returns the version of the schema, which it registers unless it is to be
// there.
func (o BindOptions) admit(ctx context.Context, r *Registry, topic string, reflected func() (string, error)) (v Version, err error) {
	text := o.Schema
	if text == "" {
		if text, err = reflected(); err != nil {
			return v, err
		}
	}
	if o.Registered {
		return r.Find(ctx, topic, text)
	}
	options := RegisterOptions{Metadata: o.Metadata, By: o.By, Force: o.Force}
	if o.Settings != (Settings{}) {
		if err := o.registrable(ctx, r, topic, text, options); err != nil {
			return v, err
		}
		if _, err := r.UpdateSettings(ctx, topic, func(own *Settings) { *own = o.Settings.over(*own) }); err != nil {
			return v, err
		}
	}
	return r.Register(ctx, topic, text, options)
}

// registrable reports what can be known to be wrong before the settings are changed: a schema
// that they do not let in, too, which would leave other programs with settings that nothing
// was registered under.
func (o BindOptions) registrable(ctx context.Context, r *Registry, topic, text string, options RegisterOptions) error {
	if err := errors.Join(o.Settings.Valid(), options.valid()); err != nil {
		return err
	}
	_, err := r.Find(ctx, topic, text)
	if errors.Is(err, ErrInvalidReference) || !errors.Is(err, ErrNoSchema) && !errors.Is(err, ErrNoVersion) {
		return err
	}
	if o.Force {
		return nil
	}
	report, err := r.Check(ctx, topic, text, CheckOptions{Level: o.Settings.Level, Model: o.Settings.Model})
	if err != nil {
		return err
	}
	return report.Err()
}

// Name returns the name of the topic.
func (t *Topic[T]) Name() string { return t.topic.Name }

// Version returns the version of the topic's schema that is that of T. Its maps and
// slices are shared.
func (t *Topic[T]) Version() Version { return t.version }

// Event returns the event that Publish would publish, validated and with its version
// in the headers, for PublishBatch or to add headers, an id or causes. The error
// matches jetbus.ErrSchema for a value that the schema does not allow, see
// [SchemaError].
func (t *Topic[T]) Event(ctx context.Context, v T) (jetbus.Event, error) {
	e, err := t.topic.Event(v)
	if err != nil {
		return jetbus.Event{}, err
	}
	if err := t.write.check(ctx, &e); err != nil {
		return jetbus.Event{}, err
	}
	return e, nil
}

// Publish encodes v, validates it under the topic's model and publishes it as an
// event of the version of T. The errors are those of Event and of p.
func (t *Topic[T]) Publish(ctx context.Context, p jetbus.Publisher, v T, o ...jetbus.PublishOptions) (jetbus.Receipt, error) {
	e, err := t.Event(ctx, v)
	if err != nil {
		return jetbus.Receipt{}, fmt.Errorf("publish %s: %w", t.topic.Name, err)
	}
	return p.Publish(ctx, e, o...)
}

// Decode returns the value of an event, brought to the version of T first; see
// [Normalizer.Normalize] for how and for the errors. A tombstone has the zero value.
func (t *Topic[T]) Decode(ctx context.Context, e jetbus.Event) (v T, err error) {
	if e, err = t.read.Normalize(ctx, e); err != nil || e.IsTombstone() {
		return v, err
	}
	return t.topic.Decode(e)
}

// Subscribe delivers decoded values, brought to the version of T first. Events that
// cannot be are dead-lettered or put off as by [Normalized]. A payload that follows
// the schema and does not decode is a failed attempt like any other. Of a tombstone
// (jetbus.Event.IsTombstone) the value is zero.
func (t *Topic[T]) Subscribe(ctx context.Context, s jetbus.Subscriber, group string, h func(context.Context, T, *jetbus.Delivery) error, o jetbus.SubscribeOptions) (jetbus.Subscription, error) {
	if h == nil {
		return nil, fmt.Errorf("subscribe %s/%s: %w: no handler", t.topic.Name, group, jetbus.ErrInvalidOption)
	}
	if len(o.Topics) > 0 {
		return nil, fmt.Errorf("subscribe %s/%s: %w: Topics is set, but the values of other topics have other types", t.topic.Name, group, jetbus.ErrInvalidOption)
	}
	return s.Subscribe(ctx, t.topic.Name, group, func(ctx context.Context, d *jetbus.Delivery) error {
		own := *d
		var err error
		if own.Event, err = t.read.Normalize(ctx, d.Event); err != nil {
			return t.read.steer(ctx, err)
		}
		var v T
		if !own.IsTombstone() {
			if v, err = t.topic.Decode(own.Event); err != nil {
				return err
			}
		}
		return h(ctx, v, &own)
	}, o)
}
