-- +goose Up

-- A user keeps what another OpenID provider has said: the roles and the fhirUser that the
-- provider gave, and whether the user reaches anything without a fhirUser. A user without a
-- password was made by a sign-in, so the provider gave everything.
UPDATE oauth_user
SET profile = profile || jsonb_build_object('federation', jsonb_build_object(
    'unbound', true,
    'roles', coalesce(nullif(profile -> 'roles', 'null'), '[]'),
    'fhirUser', coalesce(profile -> 'fhirUser', '""')))
WHERE password = '';
