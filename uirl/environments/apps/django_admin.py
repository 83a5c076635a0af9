"""Django's admin over the entities of `django.yaml`. It runs in the process of the app: see `host.py`."""

from __future__ import annotations

import io
import mimetypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

_KEY = "0" * 32


def begin(app: dict[str, Any], folder: Path) -> tuple[dict[str, str], Callable[[Path], Any]]:
    """Make the store of a new session in `folder`, with somebody signed in; return cookies, and what serves one."""
    import django
    from django.conf import settings

    groups = list(dict.fromkeys(name.split(".")[0] for name in app["entities"]))
    contrib = [f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "sessions", "messages")]
    middleware = ["sessions.middleware.Session", "auth.middleware.Authentication", "messages.middleware.Message"]
    settings.configure(
        **{"SECRET_KEY": "uirl", "ALLOWED_HOSTS": ["127.0.0.1"], "ROOT_URLCONF": __name__, "STATIC_URL": "/static/"},
        **{"INSTALLED_APPS": contrib, "DEFAULT_AUTO_FIELD": "django.db.models.AutoField", "USE_TZ": True},
        MIDDLEWARE=[
            *(f"django.contrib.{name}Middleware" for name in middleware),
            "django.middleware.csrf.CsrfViewMiddleware",
        ],
        MESSAGE_STORAGE="django.contrib.messages.storage.session.SessionStorage",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / app["store"])}},
        TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
                    "OPTIONS": {"context_processors": [
                        "django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
                        "django.contrib.messages.context_processors.messages"]}}],
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        SESSION_COOKIE_AGE=10**8,
        MIGRATION_MODULES=dict.fromkeys(groups),
    )  # fmt: skip
    django.setup()
    from django.contrib import admin
    from django.contrib.auth.models import Group, User
    from django.core.management import call_command
    from django.core.wsgi import get_wsgi_application
    from django.db import connection
    from django.urls import path

    models = _models(app["entities"], groups)
    admin.autodiscover()
    admin.site.unregister([User, Group])
    admin.site.enable_nav_sidebar = False
    global urlpatterns
    urlpatterns = [path("admin/", admin.site.urls)]
    call_command("migrate", verbosity=0)
    with connection.schema_editor() as editor:
        for model in models:
            editor.create_model(model)
    cookies = {"sessionid": _signed_in(User)}
    serve = _with_static(get_wsgi_application())
    first = next(iter(app["entities"])).replace(".", "/")
    for page in ("", f"{first}/", f"{first}/add/"):  # what is loaded here, sessions need not load
        _get(serve, f"/admin/{page}")
    connection.close()

    def make(session: Path) -> Any:
        connection.settings_dict["NAME"] = str(session / app["store"])
        return serve

    return cookies, make


urlpatterns: list[Any] = []


def _models(entities: dict[str, Any], groups: list[str]) -> list[Any]:
    from django import forms
    from django.apps import AppConfig, apps
    from django.contrib import admin
    from django.db import models

    for group in groups:
        module = type(models)(group)
        module.__path__ = [str(Path(__file__).parent)]  # type: ignore[attr-defined]
        module.__file__ = __file__
        config = AppConfig(group, module)
        config.label, config.apps, config.models = group, apps, apps.all_models[group]
        apps.app_configs[group] = config
    # without what makes slugs of titles, 170 KB that every page would compile: no entity has a slug
    files = ("vendor/jquery/jquery.min", "jquery.init", "core", "admin/RelatedObjectLookups", "actions")
    media = forms.Media(js=[f"admin/js/{file}.js" for file in files])
    made = []
    for full, entity in entities.items():
        group, name = full.split(".")
        columns = {field: _column(models, one) for field, one in entity["fields"].items()}
        title = next(iter(columns))
        meta = type("Meta", (), {"app_label": group, "ordering": ["pk"]})
        body = {
            **columns,
            "Meta": meta,
            "__module__": __name__,
            "__str__": lambda self, title=title: getattr(self, title),
        }
        model = type(name.title().replace("_", ""), (models.Model,), body)
        admin.site.register(model, type("Admin", (admin.ModelAdmin,), {"list_display": list(columns), "media": media}))
        made.append(model)
    apps.clear_cache()
    return made


def _column(models: Any, field: dict[str, Any]) -> Any:
    empty = bool(field["optional"])
    null = {"null": True, "blank": True} if empty else {}
    match field["kind"]:
        case "text":
            return models.CharField(max_length=80, blank=empty)
        case "integer":
            return models.IntegerField(**null)
        case "decimal":
            return models.DecimalField(max_digits=10, decimal_places=2, **null)
        case "date":
            return models.DateField(**null)
        case "flag":
            return models.BooleanField(default=False)
        case "choice":
            return models.CharField(max_length=20, choices=[(one, one) for one in field["choices"]])
    return models.ForeignKey(field["to"], models.CASCADE)


def _signed_in(user_model: Any) -> str:
    from datetime import UTC, datetime

    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.sessions.backends.db import SessionStore
    from django.contrib.sessions.models import Session

    user = user_model.objects.create(username="clerk", password="!", is_staff=True, is_superuser=True)
    data = {SESSION_KEY: str(user.pk), HASH_SESSION_KEY: user.get_session_auth_hash()}
    data[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    until = datetime(2100, 1, 1, tzinfo=UTC)
    Session.objects.create(session_key=_KEY, session_data=SessionStore().encode(data), expire_date=until)
    return _KEY


def _get(serve: Any, path: str) -> None:
    asked = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "SERVER_NAME": "127.0.0.1", "SERVER_PORT": "80"}
    asked |= {"HTTP_COOKIE": f"sessionid={_KEY}", "wsgi.input": io.BytesIO(), "wsgi.url_scheme": "http"}
    b"".join(serve(asked, lambda status, headers: None))


def _with_static(app: Any) -> Any:
    from django.contrib import admin

    root = (Path(admin.__file__).parent / "static").resolve()

    def serve(environ: dict[str, Any], start: Any) -> Any:
        path = environ["PATH_INFO"]
        if not path.startswith("/static/"):
            return app(environ, start)
        file = (root / path.removeprefix("/static/")).resolve()
        if not file.is_relative_to(root) or not file.is_file():
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"not found"]
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        start("200 OK", [("Content-Type", kind), ("Cache-Control", "max-age=100000")])
        return [file.read_bytes()]

    return serve
